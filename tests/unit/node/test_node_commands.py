"""The command queue: delivered until settled, once per id, newest poll only."""

from __future__ import annotations

import asyncio

from pydantic import SecretStr

from meshd.api.node_commands import CommandQueue
from meshd.api.node_schema import ResultIn
from tests.clocks import in_loop_time


def done(command_id: str, *, ok: bool = True) -> ResultIn:
    return ResultIn(id=command_id, ok=ok)


@in_loop_time
async def test_put_wakes_a_held_poll() -> None:
    queue = CommandQueue()
    poll = asyncio.create_task(queue.take(10))
    await asyncio.sleep(0.01)
    queue.put("roster", {"version": 1})
    async with asyncio.timeout(1):
        assert [command.verb for command in await poll] == ["roster"]


@in_loop_time
async def test_the_same_order_is_pending_once() -> None:
    queue = CommandQueue()
    first = queue.put("auth_key", {"key": SecretStr("a")})
    assert queue.put("auth_key", {"key": SecretStr("a")}) == first
    assert queue.put("auth_key", {"key": SecretStr("b")}) != first
    assert len(queue.pending()) == 2
    queue.settle([done(first)])
    assert queue.put("auth_key", {"key": SecretStr("a")}) != first


@in_loop_time
async def test_redelivered_until_a_result_comes_but_not_in_a_storm() -> None:
    queue = CommandQueue(redeliver_s=0.05)
    command = queue.put("leave")
    assert [one.id for one in await queue.take(0)] == [command]
    assert await queue.take(0) == []
    assert [one.id for one in await queue.take(1)] == [command]
    assert [pair[0].id for pair in queue.settle([done(command), done(command), done("unknown")])] == [command]
    assert await queue.take(0.1) == []


@in_loop_time
async def test_a_newer_poll_ends_the_older() -> None:
    queue = CommandQueue()
    older = asyncio.create_task(queue.take(10))
    await asyncio.sleep(0.01)
    newer = asyncio.create_task(queue.take(10))
    async with asyncio.timeout(1):
        assert await older == []
        queue.put("leave")
        assert len(await newer) == 1


@in_loop_time
async def test_waiting_for_a_result() -> None:
    queue = CommandQueue()
    command = queue.put("leave")
    waiting = asyncio.create_task(queue.result(command, 5))
    await asyncio.sleep(0.01)
    queue.settle([done(command, ok=False)])
    result = await waiting
    assert result is not None
    assert not result.ok
    assert await queue.result(command, 0) == result
    assert await queue.result("never", 5) is None
    assert await queue.result(queue.put("leave"), 0.01) is None


@in_loop_time
async def test_a_cut_poll_loses_nothing() -> None:
    queue = CommandQueue(redeliver_s=0.05)
    poll = asyncio.create_task(queue.take(10))
    await asyncio.sleep(0.01)
    poll.cancel()
    command = queue.put("leave")
    assert [one.id for one in await queue.take(1)] == [command]
    queue.drop(command)
    assert queue.pending() == ()


def test_arguments_are_in_no_repr() -> None:
    queue = CommandQueue()
    queue.put("auth_key", {"key": "tskey-secret"})
    assert "tskey-secret" not in repr(queue.pending())


async def test_a_held_poll_ends_at_once_when_a_sign_of_life_is_wanted() -> None:
    queue = CommandQueue()
    poll = asyncio.create_task(queue.take(60))
    await asyncio.sleep(0)
    assert queue.hasten()
    assert await poll == []
    order = queue.put("greet")
    assert queue.hasten(), "nothing was delivered yet"
    assert [one.id for one in await queue.take(60)] == [order]
    assert not queue.hasten(), "the agent may be at work on it"
    queue.settle([ResultIn(id=order, ok=True)])
    assert queue.hasten()
