"""What the worst of nodes can do to the head: the real daemon's node API under floods, beside agents that are well.

The daemon is the real one over a fleet of hollow machines, with its real journal, ticking. Three machines are in a
stranger's hands, and so is a user of a fourth one whose agent is well. They poll without a pause with ever other words,
send results that nobody asked for, bodies of megabytes, wrong tokens, and hold half-sent requests from all addresses.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty
from statistics import median
from typing import Any

import aiohttp

from meshd.api.connections import raise_descriptor_limit
from meshd.api.node_api import NodeApi
from meshd.daemon.app import Daemon
from meshd.daemon.nodes.service import HeadFacts
from meshd.model.observed import Fresh, TailnetPeer
from tests.bench import fleet
from tests.bench.hollow import source
from tests.bench.report import Row, report
from tests.bench.tick import Steady, rss_mib

MACHINES = 1000
HOSTILE = (1, 2, 3)
SHARED = 4
"""A user of this machine is hostile; its agent is well."""
HONEST = tuple(range(SHARED, 24))
POISON = {"stopped_unix": -1e308, "a": [[[[[[[[1]]]]]]]] * 20}
BEAT = {"slurmd_alive": True, "munged_alive": True}
HOLD_S = 1.0
FLEET_HOLD_S = 25.0
TICK_S = 2.0
QUIET_S = 30.0


Work = Callable[[int, dict[int, str], Any], Awaitable[None]]


class Whois:
    """Who has a loopback address."""

    async def whois(self, address: str) -> TailnetPeer:
        _, _, high, low = map(int, address.split("."))
        index = high * 250 + low - 1
        return TailnetPeer(f"n{index}", fleet.name(index), fleet.address(index), online=True)


class Watch:
    """Looks at the head all the time."""

    def __init__(self, daemon: Daemon, count: int) -> None:
        self._daemon, self._count = daemon, count
        self.ticks_ms: list[float] = []
        self.lags_ms: list[float] = []
        self.rss_mib: list[float] = []
        self.descriptors: list[int] = []

    async def run(self) -> None:
        """For ever."""
        await asyncio.gather(
            self._tick(), self._lag(), *(one.run() for one in self._daemon.controllers if one.name == "loop_lag")
        )

    async def _tick(self) -> None:
        while True:
            self._fresh()
            began = time.process_time()
            self._daemon.machines.controller.tick()
            self.ticks_ms.append((time.process_time() - began) * 1000)
            self.rss_mib.append(rss_mib())
            self.descriptors.append(len(os.listdir("/proc/self/fd")))
            await asyncio.sleep(TICK_S)

    async def _lag(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.05)
            self.lags_ms.append((time.monotonic() - began - 0.05) * 1000)

    def _fresh(self) -> None:
        """The sources have just said the same again."""
        sources, now = self._daemon.sources, self._daemon.ports.clock.now()
        for source_ in (sources.slurm, sources.listings["aws"], sources.offers["aws"]):
            if isinstance(source_.current, Fresh):
                source_.current = Fresh(source_.current.value, now)  # type: ignore[assignment]
        self._daemon.tailnet._publish(self._daemon.tailnet.table or fleet.peers(self._count))

    def read(self) -> dict[str, float]:
        """What was seen since the last reading."""
        lags = sorted(self.lags_ms)
        figures = {
            "tick, median (ms CPU)": median(self.ticks_ms), "tick, longest (ms CPU)": max(self.ticks_ms),
            "event loop late, 99 % (ms)": lags[int(len(lags) * 0.99)], "event loop late, longest (ms)": lags[-1],
            "memory, most (MiB)": max(self.rss_mib), "memory, last (MiB)": self.rss_mib[-1],
            "descriptors, most": max(self.descriptors), "event rows": self._daemon.journal.last_event_id(),
        }  # fmt: skip
        self.ticks_ms, self.lags_ms, self.rss_mib, self.descriptors = [], [], [], []
        return figures


async def measure(seconds: float, count: int) -> dict[str, dict[str, float]]:
    """Before, during and after."""
    raise_descriptor_limit()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as directory:
        steady = Steady(Path(directory), count)
        steady.fill()
        daemon = await steady.daemon(tailscaled=Whois())
        daemon.nodes.service.head = HeadFacts("lab", "127.0.0.1:6817", 1, 1, 2, 2, (), 25.0)
        api = NodeApi(daemon.nodes.service, poll_hold_s=25.0, clock=daemon.ports.clock)
        port = await api.start("127.0.0.1", 0)
        tokens = {i: daemon.ports.tokens.node_token(fleet.name(i)).get_secret_value() for i in range(1, count + 1)}
        watch = Watch(daemon, count)
        watching = asyncio.create_task(watch.run())
        spawn = multiprocessing.get_context("spawn")
        heard: Any = spawn.Queue()
        honest = spawn.Process(target=_main, args=(_honest, port, tokens, heard), daemon=True)
        honest.start()
        await asyncio.sleep(FLEET_HOLD_S + 5.0)
        figures["before"] = await _during(watch, heard, QUIET_S)
        hostile = spawn.Process(target=_main, args=(_hostile, port, tokens, heard), daemon=True)
        hostile.start()
        figures["during"] = await _during(watch, heard, seconds)
        hostile.kill()
        await asyncio.sleep(5.0)
        figures["after"] = await _during(watch, heard, QUIET_S)
        honest.kill()
        kinds = Counter(event.kind for event in daemon.journal.events(limit=1_000_000))
        figures["events"] = {kind: float(number) for kind, number in kinds.most_common()}
        figures["problems"] = {"machines told as flooding": float(len(list(_flooding(daemon))))}
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await api.stop()
        await daemon.machines.executor.aclose(0.1)
        daemon.journal.close()
    return figures


def _flooding(daemon: Daemon) -> Any:
    return daemon.store.node_events.problems({machine.name for machine in daemon.journal.machines()})


async def _during(watch: Watch, heard: Any, seconds: float) -> dict[str, float]:
    await asyncio.to_thread(_drain, heard)
    watch.read() if watch.ticks_ms and watch.lags_ms else None
    await asyncio.sleep(max(seconds, 2 * TICK_S))
    found = await asyncio.to_thread(_drain, heard)
    waits = sorted(wait for kind, wait in found if kind in {"agent", "beside"})
    beside = sorted(wait for kind, wait in found if kind == "beside")
    calls = Counter(kind for kind, _ in found)
    figures = {
        **watch.read(), "polls of agents that are well": len(waits),
        "the same, not served": calls["agent failed"] + calls["beside failed"],
        "polls of the rest of the fleet": calls["fleet"], "the same, not served  ": calls["fleet failed"],
        "late, median (ms)": median(waits) if waits else -1.0,
        "late, 99 % (ms)": waits[int(len(waits) * 0.99)] if waits else -1.0,
        "beside a hostile user: polls": len(beside), "the same, not served ": calls["beside failed"],
        "beside a hostile user: late, 99 % (ms)": beside[int(len(beside) * 0.99)] if beside else -1.0,
    }  # fmt: skip
    return figures | {f"hostile: {kind}": float(n) for kind, n in calls.items() if kind.startswith("answer ")}


def _drain(heard: Any) -> list[tuple[str, float]]:
    """What has come so far; in a thread, for the last of it is still on its way."""
    found: list[tuple[str, float]] = []
    end_s = time.monotonic() + 2.0
    with suppress(Empty):
        while time.monotonic() < end_s:
            found += heard.get(timeout=0.2)
    return found


# -- in other processes -----------------------------------------------------------------------------------------------


def _main(
    work: Callable[[int, dict[int, str], Any], Awaitable[None]], port: int, tokens: dict[int, str], out: Any
) -> None:
    raise_descriptor_limit()
    os.nice(5)
    asyncio.run(work(port, tokens, out))  # type: ignore[arg-type]


async def _honest(port: int, tokens: dict[int, str], out: Any) -> None:
    """A few poll often, so that much is heard of them; the rest of the fleet as agents do."""
    await asyncio.gather(*(_agent(index, port, tokens[index], out) for index in tokens if index not in HOSTILE))


async def _agent(index: int, port: int, token: str, out: Any) -> None:
    """Polls as an agent does. Tells how much later than asked for each answer came, in milliseconds."""
    kind = "beside" if index == SHARED else "agent" if index in HONEST else "fleet"
    hold_s = FLEET_HOLD_S if kind == "fleet" else HOLD_S
    if kind == "fleet":
        await asyncio.sleep(random.uniform(0, FLEET_HOLD_S))
    body: dict[str, Any] = {
        "phase": "serving",
        "munge_ok": True,
        "roster_version": 0,
        "hold_s": hold_s,
        "heartbeat": BEAT,
    }
    connector = aiohttp.TCPConnector(local_addr=(source(index), 0))
    timeout = aiohttp.ClientTimeout(total=60)
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        while True:
            began = time.monotonic()
            try:
                async with session.post(f"http://127.0.0.1:{port}/v1/poll", json=body) as answer:
                    good = answer.status == 200
                    told = await answer.json() if good else {}
            except (aiohttp.ClientError, TimeoutError, OSError):
                good, told = False, {}
            commands = told.get("commands", [])
            body["results"] = [{"id": one["id"], "ok": True} for one in commands]
            for one in commands:
                body["roster_version"] = one["args"].get("version", body["roster_version"])
            if commands:
                continue  # it was answered before its time
            out.put([(kind if good else f"{kind} failed", (time.monotonic() - began - hold_s) * 1000)])
            if not good:
                await asyncio.sleep(0.5)


async def _hostile(port: int, tokens: dict[int, str], out: Any) -> None:
    told: Counter[str] = Counter()
    work = [_holds(port, index) for index in (*HOSTILE, SHARED, *range(200, 240))]
    for index in HOSTILE:
        work += [_floods(index, port, tokens[index], told, number) for number in range(8)]
        work += [_large(index, port, tokens[index], told), _guesses(index, port, told)]
    work += [_guesses(SHARED, port, told), _tells(told, out)]
    await asyncio.gather(*work)


async def _tells(told: Counter[str], out: Any) -> None:
    while True:
        await asyncio.sleep(1.0)
        out.put([(f"answer {status}", 0.0) for status, number in told.items() for _ in range(number)])
        told.clear()


async def _calls(
    index: int, token: str, told: Counter[str], call: Callable[[aiohttp.ClientSession, int], Any], pause_s: float
) -> None:
    connector = aiohttp.TCPConnector(local_addr=(source(index), 0))
    headers = {"Authorization": f"Bearer {token}"}
    number = 0
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        while True:
            number += 1
            try:
                async with call(session, number) as answer:
                    told[str(answer.status)] += 1
                    await answer.read()
            except (aiohttp.ClientError, TimeoutError, OSError):
                told["cut"] += 1
                await asyncio.sleep(0.01)
            await asyncio.sleep(pause_s)


async def _floods(index: int, port: int, token: str, told: Counter[str], which: int) -> None:
    def call(session: aiohttp.ClientSession, number: int) -> Any:
        body = {
            "phase": "serving", "hold_s": 0, "problem": f"p{which}-{number}", "notices": ["x" * 500] * 16,
            "roster_version": -1, "auth_key_sha256": f"{number:064x}", "spare_key_sha256": f"{which:064x}",
            "heartbeat": BEAT, "results": [{"id": f"z{one}", "ok": True, "data": POISON} for one in range(64)],
        }  # fmt: skip
        return session.post(f"http://127.0.0.1:{port}/v1/poll", json=body)

    await _calls(index, token, told, call, 0.0)


async def _large(index: int, port: int, token: str, told: Counter[str]) -> None:
    body = json.dumps({"results": [{"id": "a", "ok": True, "data": {"a": [[] for _ in range(300_000)]}}]}).encode()

    def call(session: aiohttp.ClientSession, _number: int) -> Any:
        return session.post(f"http://127.0.0.1:{port}/v1/poll", data=body)

    await _calls(index, token, told, call, 0.2)


async def _guesses(index: int, port: int, told: Counter[str]) -> None:
    def call(session: aiohttp.ClientSession, number: int) -> Any:
        headers = {"Authorization": f"Bearer {number:064x}"}
        path = ("/v1/join", "/v1/agent", "/v1/poll")[number % 3]
        method = "GET" if path == "/v1/agent" else "POST"
        return session.request(method, f"http://127.0.0.1:{port}{path}", json={}, headers=headers)

    await _calls(index, "0" * 64, told, call, 0.0)


async def _holds(port: int, index: int) -> None:
    """Half-sent requests, as many as are let, again and again."""
    held: list[asyncio.StreamWriter] = []
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source(index), 0))
            writer.write(b"POST /v1/poll HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n")
            held.append(writer)
        except OSError:
            await asyncio.sleep(0.5)
        if len(held) > 40:
            held.pop(0).close()
        await asyncio.sleep(0.2)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the hostile ones are let (600)")
    parser.add_argument("--machines", type=int, default=MACHINES, help=f"of the fleet ({MACHINES})")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.seconds, options.machines))
    rows = [
        Row(f"{when}: {what}", value, "")
        for when in ("before", "during", "after", "events", "problems")
        for what, value in figures[when].items()
    ]
    report("hostile", rows, {"seconds": options.seconds, "machines": options.machines, **figures})


if __name__ == "__main__":
    main()
