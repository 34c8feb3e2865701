"""What a node says is bounded where it comes in, and so is what is kept of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from meshd.api.node_commands import PENDING_MAX, CommandQueue
from meshd.api.node_results import LOG_MAX_CHARS, LOGS_MAX, RESULTS
from meshd.api.node_schema import HeartbeatIn, PollIn, ResultIn, Verb
from meshd.daemon.agents import ROSTER_AGAIN_S, AgentQueues
from tests.clocks import in_loop_time

BEAT = '{"heartbeat": {"%s": %s}}'


def result_of(command_id: str, data: dict[str, Any], *, ok: bool = True) -> ResultIn:
    return ResultIn(id=command_id, ok=ok, data=data)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999"])
@pytest.mark.parametrize("field", ["uptime_s", "load1"])
def test_a_heartbeat_has_finite_numbers(field: str, number: str) -> None:
    with pytest.raises(ValidationError):
        PollIn.model_validate_json(BEAT % (field, number))


@pytest.mark.parametrize(("field", "number"), [("uptime_s", -1), ("uptime_s", 1e300), ("load1", -1), ("load1", 1e300)])
def test_a_heartbeat_has_ranges(field: str, number: float) -> None:
    with pytest.raises(ValidationError):
        HeartbeatIn.model_validate({field: number})


@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e999", "-1e999"])
@pytest.mark.parametrize("data", ['{"stopped_unix": %s}', '{"a": {"b": [1, {"c": %s}]}}', '{"a": [[[%s]]]}'])
def test_no_result_has_a_number_that_is_not_finite_at_any_depth(data: str, number: str) -> None:
    text = '{"results": [{"id": "a", "ok": true, "data": %s}]}' % (data % number)
    with pytest.raises(ValidationError):
        PollIn.model_validate_json(text)


@pytest.mark.parametrize(
    ("verb", "data"),
    [
        ("munge_key", {"stopped_unix": -1e308, "started_unix": 1e308}),
        ("munge_key", {"stopped_unix": 0.0, "started_unix": 1.7e308}),
        ("munge_key", {"stopped_unix": int("9" * 400), "started_unix": 1}),
        ("munge_key", {"stopped_unix": 5.0, "started_unix": 4.0}),
        ("munge_key", {"stopped_unix": 5.0}),
        ("munge_key", {"fingerprint": "x" * 16}),
        ("auth_key", {"sha256": "a" * 65}),
        ("spare_key", {"sha256": ["a"]}),
        ("reauth", {"gap_s": 1e9}),
        ("reauth", {"gap_s": -1}),
        ("reauth", {"node_key": "nodekey:\x1b[31m"}),
        ("reauth", {"node_key": "n" * 101}),
        ("greet", {"answered": {"a": 1}}),
        ("collect_logs", {"logs": {"a\x1b": "x"}}),
        ("collect_logs", {"logs": {f"log{number}": "x" for number in range(LOGS_MAX + 1)}}),
        ("collect_logs", {"logs": ["x"]}),
    ],
)
def test_a_result_out_of_its_verbs_bounds_is_a_failure(verb: Verb, data: dict[str, Any]) -> None:
    queue = CommandQueue()
    command_id = queue.put(verb)
    ((_, result),) = queue.settle([result_of(command_id, data)])
    assert not result.ok
    assert result.data == {}


@pytest.mark.parametrize(
    ("verb", "data"),
    [
        ("munge_key", {"stopped_unix": 1_790_000_000.0, "started_unix": 1_790_000_001.5}),
        ("munge_key", {"fingerprint": "0123456789abcdef"}),
        ("auth_key", {"sha256": "a" * 64}),
        ("reauth", {"node_key": "nodekey:0123abcd", "gap_s": 0.1}),
        ("greet", {"answered": True}),
        ("start_slurmd", {"alive": True}),
        ("roster", {"changed": True}),
    ],
)
def test_a_result_within_its_bounds_is_taken_and_the_rest_is_dropped(verb: Verb, data: dict[str, Any]) -> None:
    queue = CommandQueue()
    command_id = queue.put(verb)
    ((_, result),) = queue.settle([result_of(command_id, {**data, "more": ["x" * 1000]})])
    assert result.ok
    assert result.data == data


def test_every_verb_has_a_model() -> None:
    assert set(RESULTS) == set(Verb.__args__)  # type: ignore[attr-defined]


def test_logs_are_cut_to_their_end_and_carry_no_escape() -> None:
    queue = CommandQueue()
    command_id = queue.put("collect_logs")
    text = "old" + "x" * LOG_MAX_CHARS + "\x1b[31m\x9b31m\nend"
    ((_, result),) = queue.settle([result_of(command_id, {"logs": {"slurmd.log": text}})])
    log = result.data["logs"]["slurmd.log"]
    assert len(log) <= LOG_MAX_CHARS
    assert log.endswith("\nend")
    assert not set(log) & {"\x1b", "\x9b"}


@in_loop_time
async def test_only_results_of_pending_commands_are_taken() -> None:
    queue = CommandQueue()
    assert queue.settle([result_of("zz", {"stopped_unix": 1.0, "started_unix": 2.0})]) == []
    command_id = queue.put("leave")
    assert len(queue.settle([result_of(command_id, {}), result_of(command_id, {})])) == 1


@in_loop_time
async def test_what_is_kept_of_results_is_small() -> None:
    queue = CommandQueue()
    for number in range(300):
        command_id = queue.put("auth_key", {"key": f"{number}"})
        queue.settle([ResultIn(id=command_id, ok=True, detail="d" * 4000, data={"junk": ["x" * 1000] * 40})])
    kept = [await queue.result(command_id, 0)]
    assert kept[0] is not None
    size = len(json.dumps([one.model_dump() for one in queue._outcomes]))
    assert size < 32 * 1024
    command_id = queue.put("collect_logs")
    queue.settle([result_of(command_id, {"logs": {"slurmd.log": "x" * 60_000}})])
    assert len(json.dumps([one.model_dump() for one in queue._outcomes])) < 32 * 1024


@in_loop_time
async def test_pending_commands_are_bounded_and_the_oldest_ends() -> None:
    queue = CommandQueue()
    first = queue.put("auth_key", {"key": "first"})
    for number in range(PENDING_MAX * 3):
        queue.put("auth_key", {"key": f"{number}"})
    assert len(queue.pending()) == PENDING_MAX
    assert await queue.result(first, 1) is None


@in_loop_time
async def test_a_waiter_that_gives_up_is_not_kept() -> None:
    queue = CommandQueue()
    command_id = queue.put("leave")
    for _ in range(100):
        assert await queue.result(command_id, 0.001) is None
    assert queue._waiters == {}


def test_a_roster_is_pending_once_and_not_sent_with_every_poll() -> None:
    agents = AgentQueues()
    agents.roster_version = 5
    made = set()
    for poll in range(200):
        agents.offer_roster("m", -1, poll * 0.01)
        pending = agents.of("m").pending()
        assert len(pending) <= 1
        made |= {one.id for one in pending}
        agents.settle("m", [result_of(one.id, {}) for one in pending])
    assert len(made) == 1
    agents.offer_roster("m", -1, ROSTER_AGAIN_S + 5)
    assert len(agents.of("m").pending()) == 1
    agents.roster, agents.roster_version = {"h100-1": "100.64.0.9"}, 6
    agents.offer_roster("m", -1, ROSTER_AGAIN_S + 5.1)
    assert [one.args["version"] for one in agents.of("m").pending()] == [6]
