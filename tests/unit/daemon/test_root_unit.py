"""One request file, several callers at once: each gets the answer to what it asked."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pydantic import SecretBytes

from meshd.daemon.munge_key.head import HeadMunge
from meshd.daemon.root_unit import NoAnswer, RootUnit
from meshd.munge import headkey
from meshd.munge.client import MungeClient
from meshd.munge.key import fingerprint
from meshd.runtime.clock import SystemClock
from meshd.runtime.request import RequestRefused, take, write_whole
from meshd.runtime.run import run as run_program
from meshd.slurm.client import SlurmClient


@contextmanager
def served(request: Path, once: Callable[[], None]) -> Iterator[None]:
    """What systemd's path unit does: while there is a request, its program runs, one at a time."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            if request.exists():
                once()
            time.sleep(0.0005)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Echo:
    """A program of root's that answers with what it was asked, after a while."""

    def __init__(self, base: Path, takes_s: float) -> None:
        self.request, self.answer = base / "x.request", base / "answer.json"
        self.asked: list[int] = []
        self._takes_s = takes_s

    def once(self) -> None:
        try:
            body = take(self.request, 1 << 20)
        except RequestRefused:  # it was taken back meanwhile
            return
        self.asked.append(body["number"])
        time.sleep(self._takes_s)
        write_whole(self.answer, json.dumps(body).encode(), 0o644)

    def unit(self) -> RootUnit:
        return RootUnit(self.request, self.answer, SystemClock(), 0.001)


async def test_thirty_callers_at_once_get_their_own_answers(tmp_path: Path) -> None:
    echo = Echo(tmp_path, 0.003)
    unit = echo.unit()
    with served(echo.request, echo.once):
        told = await asyncio.gather(*(unit.ask({"number": number}, 20.0) for number in range(30)))
    assert [one["number"] for one in told] == list(range(30))
    assert sorted(echo.asked) == list(range(30)), "each was carried out, and once"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer.json"]


async def test_a_caller_does_not_wait_longer_than_it_said_for_the_others(tmp_path: Path) -> None:
    unit, began = Echo(tmp_path, 0).unit(), time.monotonic()
    asked = [asyncio.create_task(unit.ask({"number": n}, limit_s)) for n, limit_s in enumerate((1.0, 0.2, 0.2))]
    done, _ = await asyncio.wait(asked, timeout=0.6)
    assert done == set(asked[1:]), "nothing serves: two give up before the first does"
    assert all(isinstance(one.exception(), NoAnswer) for one in done)
    assert json.loads((tmp_path / "x.request").read_text())["number"] == 0, "the first one's request was left alone"
    with pytest.raises(NoAnswer) as raised:
        await asked[0]
    assert not raised.value.taken and time.monotonic() - began < 2
    assert not list(tmp_path.iterdir())


async def test_a_caller_that_is_cancelled_takes_its_request_back_and_lets_the_next_ask(tmp_path: Path) -> None:
    echo = Echo(tmp_path, 0)
    unit = echo.unit()
    for moment in range(20):  # before, in and after the write
        gone = asyncio.create_task(unit.ask({"number": 0}, 20.0))
        await asyncio.sleep(0.0002 * moment)
        gone.cancel()
        assert isinstance((await asyncio.gather(gone, return_exceptions=True))[0], asyncio.CancelledError)
        assert not list(tmp_path.iterdir())
    with served(echo.request, echo.once):
        assert (await unit.ask({"number": 1}, 20.0))["number"] == 1
    assert echo.asked == [1]


async def test_a_request_that_was_taken_and_not_answered_is_said_to_be_taken(tmp_path: Path) -> None:
    echo = Echo(tmp_path, 0.5)
    with served(echo.request, echo.once), pytest.raises(NoAnswer) as raised:
        await echo.unit().ask({"number": 0}, 0.2)
    assert raised.value.taken


def test_a_request_that_is_laid_while_another_is_taken_stays(tmp_path: Path) -> None:
    request = tmp_path / "x.request"
    over = threading.Event()

    def lay() -> None:
        number = 0
        while not over.is_set():
            write_whole(request, json.dumps({"number": number}).encode(), 0o600)
            number += 1
        write_whole(request, json.dumps({"number": "last"}).encode(), 0o600)

    for _ in range(20):
        over.clear()
        thread = threading.Thread(target=lay)
        thread.start()
        seen: list[object] = []
        end = time.monotonic() + 0.02
        while time.monotonic() < end or thread.is_alive():
            if time.monotonic() >= end:
                over.set()
            with suppress(RequestRefused):  # there is none
                seen.append(take(request, 1024)["number"])
        thread.join()
        if seen[-1:] != ["last"]:
            seen.append(take(request, 1024)["number"])
        assert seen[-1] == "last"
        numbers = seen[:-1]
        assert numbers == sorted(numbers, key=int) and not list(tmp_path.iterdir())  # type: ignore[call-overload]


async def test_a_key_is_staged_while_others_ask_for_its_age(tmp_path: Path) -> None:
    run, etc, answer = tmp_path / "run", tmp_path / "etc", tmp_path / "answer.json"
    run.mkdir()
    etc.mkdir()
    (etc / "munge.key").write_bytes(b"o" * 64)
    os.utime(etc / "munge.key", (1_700_000_000, 1_700_000_000))
    munge = headkey.Munge(key=etc / "munge.key", unit=lambda verb: None, answers=lambda: True)
    head = HeadMunge(run, MungeClient(), SlurmClient(run_program, 5.0), SystemClock(), answer)
    request = run / headkey.REQUEST

    def once() -> None:
        headkey.serve(request, answer, munge)
        time.sleep(0.01)

    key = SecretBytes(b"n" * 64)
    with served(request, once):
        for _ in range(5):  # doctor and the age ask, then a rotation begins
            looks = [asyncio.create_task(head.made_at()) for _ in range(3)]
            await asyncio.sleep(0.002)
            await head.stage(key)
            assert (head.view.failure, head.view.staged) == ("", fingerprint(key))
            made = {one.timestamp() for one in await asyncio.gather(*looks)}
            assert made == {1_700_000_000}
            munge.staged.unlink()
