"""When a job that has its nodes may start."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.model.observed import Fresh, Observation, SlurmJob, SlurmNode, SlurmView, Unavailable
from meshd.plan.job_start import NAMES_WAIT, NOT_UP, USER_WAIT, Starts, WaitingProlog, user_of, why_start
from tests.unit.worlds import NOW

UP, BOOTS = ("ALLOCATED", "CLOUD"), ("ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING")
LIMIT = timedelta(hours=1)


def seen(*states: tuple[str, ...], age_s: float = 0.0, state: str = "CONFIGURING", job: str = "7") -> Fresh[SlurmView]:
    nodes = {f"h100-{n}": SlurmNode(f"h100-{n}", "100.64.0.9", frozenset(words)) for n, words in enumerate(states, 1)}
    nodes["own-1"] = SlurmNode("own-1", "10.0.0.1", frozenset({"DOWN"}))
    jobs = (SlurmJob(job, "ann", "h100", state, tuple(f"h100-{n}" for n in range(1, len(states) + 1))),)
    return Fresh(SlurmView("24.11.5", nodes, jobs), NOW - timedelta(seconds=age_s))


def why(
    slurm: Observation[SlurmView],
    *nodes: str,
    waited_s: float = 0.0,
    up_s: float | None = None,
    ready: bool = False,
    names: bool = True,
    user: bool = True,
) -> Starts | None:
    waiting = WaitingProlog(
        "7", nodes, NOW - timedelta(seconds=waited_s), None if up_s is None else NOW - timedelta(seconds=up_s), LIMIT
    )
    return why_start(
        waiting, slurm, NOW, is_slot=lambda name: name.startswith("h100-"), is_ready=lambda _: ready,
        know_each_other=lambda _: names, have_user=lambda _: user,
    )  # fmt: skip


def test_when_the_last_node_is_up() -> None:
    assert why(seen(UP, BOOTS), "h100-1", "h100-2") is None
    assert why(seen(UP, UP), "h100-1", "h100-2") is Starts.UP


@pytest.mark.parametrize("word", sorted(NOT_UP))
def test_states_that_are_not_up(word: str) -> None:
    assert why(seen((*UP, word)), "h100-1") is None


def test_a_node_that_is_to_leave_after_its_jobs_is_up() -> None:
    assert why(seen((*UP, "POWER_DOWN", "DRAIN")), "h100-1") is Starts.UP


def test_nodes_of_others_do_not_hold_it_up() -> None:
    assert why(seen(), "own-1") is Starts.NO_SLOTS
    assert why(seen(UP), "own-1", "h100-1") is Starts.UP
    assert why(seen(BOOTS), "own-1", "h100-1") is None


def test_what_slurm_said_before_counts_only_for_nodes_that_were_up_for_long() -> None:
    assert why(seen(UP, age_s=3), "h100-1") is None
    assert why(seen(UP, age_s=3), "h100-1", ready=True) is Starts.UP
    assert why(seen(UP, age_s=11), "h100-1", ready=True) is None
    assert why(seen(BOOTS, age_s=3), "h100-1", ready=True) is None


def test_names_are_waited_for_but_not_for_long() -> None:
    wait_s = NAMES_WAIT.total_seconds()
    assert why(seen(UP, UP), "h100-1", "h100-2", names=False) is None
    assert why(seen(UP, UP), "h100-1", "h100-2", names=False, up_s=wait_s - 0.1, waited_s=60) is None
    assert why(seen(UP, UP), "h100-1", "h100-2", names=False, up_s=wait_s, waited_s=60) is Starts.NAMES_LATE
    assert why(seen(UP), "h100-1", names=False) is Starts.UP, "one node needs no other's name"


def test_the_user_is_waited_for_but_not_for_ever() -> None:
    wait_s = USER_WAIT.total_seconds()
    assert why(seen(UP), "h100-1", user=False) is None
    assert why(seen(UP), "h100-1", user=False, up_s=wait_s - 0.1, waited_s=300) is None
    assert why(seen(UP), "h100-1", user=False, up_s=wait_s, waited_s=300) is Starts.USER_LATE
    assert why(seen(UP, UP), "h100-1", "h100-2", names=False, user=False, up_s=wait_s, waited_s=300) is Starts.USER_LATE
    assert why(seen(UP), "h100-1", user=False, waited_s=3600) is Starts.LIMIT, "PrologEpilogTimeout may be shorter"
    assert why(seen(), "own-1", user=False) is Starts.NO_SLOTS, "accounts on other nodes are not meshd's"


def test_whose_job_it_is() -> None:
    waiting = WaitingProlog("7", ("h100-1",), NOW, None, LIMIT)
    assert user_of(waiting, seen(UP)) == "ann"
    assert user_of(waiting, seen(UP, job="8")) == ""
    assert user_of(waiting, Unavailable("no answer", NOW)) == ""


def test_a_job_without_a_list_has_slurm_s() -> None:
    assert why(seen(UP, UP)) is Starts.UP
    assert why(seen(UP, BOOTS)) is None
    assert why(seen(UP, UP, job="8"), waited_s=1) is None
    assert why(seen(UP, UP, job="8"), waited_s=3) is Starts.GONE


def test_a_job_that_is_gone() -> None:
    assert why(seen(BOOTS, state="RUNNING"), "h100-1", waited_s=3) is Starts.GONE
    assert why(seen(BOOTS, state="RUNNING"), "h100-1", waited_s=1) is None, "Slurm may not show it yet"
    assert why(seen(BOOTS, state="RUNNING", age_s=2), "h100-1", waited_s=3) is None, "read too early"
    assert why(seen(BOOTS, BOOTS, job="6+1"), "h100-1", waited_s=3) is None, "another name of the same job"


def test_unknown_is_not_gone() -> None:
    assert why(Unavailable("no answer", NOW), "h100-1", waited_s=3000) is None
    assert why(Unavailable("no answer", NOW), waited_s=3000) is None
    assert why(Unavailable("no answer", NOW), "h100-1", waited_s=3600) is Starts.LIMIT
    assert why(seen(BOOTS), "h100-1", waited_s=3600) is Starts.LIMIT


@given(
    st.lists(st.sampled_from([UP, BOOTS, ("IDLE", "CLOUD", "POWERED_DOWN")]), min_size=1, max_size=4),
    st.floats(0, 20), st.booleans(), st.booleans(), st.booleans(), st.floats(0, 3599),
)  # fmt: skip
def test_it_never_starts_as_up_on_a_node_that_is_not(
    states: list[tuple[str, ...]], age_s: float, ready: bool, names: bool, user: bool, waited_s: float
) -> None:
    nodes = [f"h100-{n}" for n in range(1, len(states) + 1)]
    found = why(seen(*states, age_s=age_s), *nodes, ready=ready, names=names, user=user, waited_s=waited_s)
    assert found in (None, Starts.UP)
    if found is Starts.UP:
        assert user and all(words == UP for words in states)
