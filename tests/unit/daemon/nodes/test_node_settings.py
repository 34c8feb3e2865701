"""The head's side of node settings: what an agent is sent, when, and what is remembered of its words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from meshd.api.node_schema import FaultIn, PollIn, ResultIn, SectionIn
from meshd.config import MlflowSettings, PoolSettings, UsersSettings
from meshd.daemon.agents import SECTION_AGAIN_S, AgentQueues
from meshd.daemon.nodes.node_settings import NodeSettings
from meshd.model.machine import Phase
from meshd.model.node_settings import SectionState
from meshd.plan.accounts import Accounts, User
from meshd.plan.node_settings import MLFLOW_URI
from tests.live import live_settings
from tests.node_room import node_parts
from tests.unit.daemon.small import Small
from tests.unit.daemon.standins import MungeKey
from tests.unit.worlds import machine

READY = machine(Phase.READY)
NEW = machine(Phase.CONFIGURING, index=2, munge_ok=True)
OTHER = "0" * 16


class Room(Small):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, READY, NEW)
        self.live = live_settings(pools={"h100": PoolSettings(gpu="h100", env={"A": "1"})})
        self.queues = AgentQueues()
        self.head, self.task_prolog = "100.64.0.1", ""
        self.accounts: Accounts | None = None
        self.node_settings = NodeSettings(
            self.live, self.journal, self.queues, self.reports, self.clock, {}, head=lambda: self.head,
            task_prolog=self.asked, accounts=lambda: self.accounts,
        )  # fmt: skip
        self.service = node_parts(
            self.machine_store, live=self.live, agents=self.queues, reports=self.reports,
            munge_key=cast("Any", MungeKey()), node_settings=self.node_settings,
        ).service  # fmt: skip
        self.queues.keep({}, {READY.name, NEW.name}, set())

    async def asked(self) -> str:
        return self.task_prolog

    @property
    def digest(self) -> str:
        return self.node_settings.wanted(READY)["job_env"].digest

    async def poll(self, digest: str | None, state: str = "applied", detail: str = "", **parts: Any) -> list[Any]:
        """One poll of READY's agent, and what it is sent of the section that is looked at here."""
        wanted = self.node_settings.wanted(READY).items()
        held = {name: SectionIn(digest=one.digest, state="applied") for name, one in wanted if name != "job_env"}
        if digest is not None:
            held["job_env"] = SectionIn(digest=digest, state=state, detail=detail)
        report = PollIn(phase="serving", munge_ok=True, **{"sections": held, **parts})
        commands = await self.service.poll(READY.name, report, 0.0)
        return [one for one in commands if one.verb == "section" and one.args["name"] == "job_env"]

    def set_env(self, **env: str) -> None:
        pools = {"h100": PoolSettings(gpu="h100", env=env)}
        self.live.settings = self.live.settings.model_copy(update={"pools": pools})


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path)
    yield made
    await made.executor.aclose(1)
    made.journal.close()


async def test_an_agent_is_sent_what_it_does_not_hold(room: Room) -> None:
    (sent,) = await room.poll(OTHER)
    assert (sent.args["name"], sent.args["digest"], sent.args["value"]["env"]["A"]) == ("job_env", room.digest, "1")
    done = (ResultIn(id=sent.id, ok=True),)
    assert await room.poll(room.digest, "working", results=done) == []
    assert await room.poll(room.digest, "failed") == [], "it tries again by itself"
    assert await room.poll(room.digest) == []


def test_every_job_knows_mlflow_where_the_head_has_it(room: Room) -> None:
    def env() -> Mapping[str, str]:
        value: Mapping[str, str] = room.node_settings.of(READY)["job_env"].value["env"]
        return value

    assert MLFLOW_URI not in env()
    mlflow = MlflowSettings(enabled=True, port=5001)
    room.live.settings = room.live.settings.model_copy(update={"mlflow": mlflow})
    assert env()[MLFLOW_URI] == "http://100.64.0.1:5001"
    room.head = ""
    assert env()[MLFLOW_URI] == "http://100.64.0.1:5001", "a tailscaled that restarts takes nothing from jobs"
    room.head = "100.64.0.9"
    assert env()[MLFLOW_URI] == "http://100.64.0.9:5001"
    room.set_env(**{MLFLOW_URI: "http://elsewhere"})
    assert env()[MLFLOW_URI] == "http://elsewhere"


async def test_one_that_never_keeps_it_is_sent_it_seldom(room: Room) -> None:
    (sent,) = await room.poll(None)
    for _ in range(5):
        assert await room.poll(None, results=(ResultIn(id=sent.id, ok=False, detail="disk full"),)) == []
    room.clock.t_s += SECTION_AGAIN_S
    assert len(await room.poll(None)) == 1


async def test_a_change_of_the_settings_is_sent_at_once(room: Room) -> None:
    assert await room.poll(room.digest) == []
    room.set_env(A="2")
    await room.node_settings.reconcile()
    room.set_env(A="3")
    await room.node_settings.reconcile()
    pending = [one for one in room.queues.of(READY.name).pending() if one.args["name"] == "job_env"]
    assert [one.args["value"]["env"]["A"] for one in pending] == ["3"], "a newer value takes the place of an older one"
    assert not room.queues.of(NEW.name).pending(), "an agent that has not called is sent nothing"


async def test_an_agent_that_is_older_than_sections_is_sent_none(room: Room) -> None:
    assert await room.poll(None, sections=None) == []
    assert room.reports.current[READY.name].sections is None


async def test_the_answer_to_a_join_has_all_of_them(room: Room) -> None:
    answer = room.node_settings.for_join(room.get(NEW.name))
    assert answer["job_env"]["digest"] == room.digest
    assert answer["job_env"]["value"]["env"]["A"] == "1"
    assert list(room.node_settings.of_arriving()) == [NEW.name]


async def test_a_failed_section_is_the_machines_problem_until_it_is_over(room: Room) -> None:
    await room.poll(room.digest, "failed", "no space left")
    assert room.get(READY.name).problem == "job_env: no space left"
    await room.poll(room.digest, "working", "trying again")
    assert room.get(READY.name).problem == ""


async def test_since_when_a_state_and_a_fault_last(room: Room) -> None:
    async def said(state: str, *codes: str) -> tuple[float, list[float]]:
        room.clock.t_s += 10
        await room.poll(room.digest, state, faults=tuple(FaultIn(section="shares", code=code) for code in codes))
        report = room.reports.current[READY.name]
        now = room.clock.now()
        return (
            (now - report.sections["job_env"].since).total_seconds(),
            [(now - one.since).total_seconds() for one in report.faults],
        )

    assert await said("working", "share_lost") == (0, [0])
    assert await said("working", "share_lost") == (10, [10])
    assert await said("applied", "account_clash", "share_lost") == (0, [0, 20])
    assert await said("applied") == (10, [])
    assert await said("applied", "share_lost") == (20, [0])


async def test_doctor_says_whether_jobs_get_their_variables(room: Room) -> None:
    async def said() -> tuple[str, str]:
        row = await room.node_settings.check()
        return row.status, row.code

    await room.poll(room.digest)
    assert await said() == ("warn", "task_prolog_off")
    room.task_prolog = "/etc/slurm/mine.sh"
    assert await said() == ("warn", "task_prolog_off")
    room.task_prolog = "/usr/lib/meshd/task-prolog"
    assert await said() == ("ok", "")
    await room.poll(None, sections=None)
    assert await said() == ("fail", "task_prolog_missing"), "an agent that is older: each task fails there"


@pytest.mark.parametrize(
    "wrong",
    [
        {"sections": {"x" * 41: {"digest": OTHER, "state": "applied"}}},
        {"sections": {"Bad": {"digest": OTHER, "state": "applied"}}},
        {"sections": {"a": {"digest": "no", "state": "applied"}}},
        {"sections": {"a": {"digest": OTHER, "state": "gone"}}},
        {"sections": {"a": {"digest": OTHER, "state": "applied", "detail": "x" * 401}}},
        {"sections": {chr(97 + i): {"digest": OTHER, "state": "applied"} for i in range(17)}},
        {"faults": [{"section": "a", "code": "B"}]}, {"faults": [{"section": "a", "code": "b"}] * 17},
        {"faults": [{"section": "a", "code": "b", "detail": "x" * 401}]},
    ],
)  # fmt: skip
def test_what_a_node_says_of_its_sections_has_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PollIn.model_validate(wrong)
    assert SectionState("applied") is SectionState.APPLIED


async def test_a_machine_has_a_user_when_its_agent_says_so(room: Room) -> None:
    users = tuple(User(name, uid, uid, "", f"/home/{name}", "/bin/sh") for name, uid in (("ann", 1000), ("ben", 1001)))
    room.accounts = Accounts(users[:1])
    await room.poll(room.digest)
    old = room.node_settings.wanted(READY)["accounts"].digest
    room.accounts = Accounts(users)
    assert not room.node_settings.has_user(READY.name, 1001), "at once, also where nothing was sent yet"
    assert room.node_settings.has_user(READY.name, 1000) and room.node_settings.has_user(READY.name, 2000)
    held = {
        name: SectionIn(digest=one.digest, state="applied") for name, one in room.node_settings.wanted(READY).items()
    }
    for digest, state, has in ((old, "applied", False), (held["accounts"].digest, "working", False),
                               (held["accounts"].digest, "failed", False), (held["accounts"].digest, "applied", True),
                               (held["accounts"].digest, "working", True)):  # fmt: skip
        await room.poll(None, sections={**held, "accounts": SectionIn(digest=digest, state=state)})
        assert room.node_settings.has_user(READY.name, 1001) is has
    room.live.settings = room.live.settings.model_copy(update={"users": UsersSettings(image_accounts="keep")})
    assert room.node_settings.has_user(READY.name, 1001), "another digest of the same accounts"
