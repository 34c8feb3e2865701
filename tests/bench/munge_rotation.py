"""The munge key rotates over a few hundred nodes: how long it takes, how far apart they change, what it costs the head.

The head's parts run in this process: journal, rotation, node service, node API, and what root does about the head's key
(`meshd.munge.headkey`) in a thread. The agents are hollow. munged, munge, unmunge and scontrol are stand-ins: a munged
takes 20 ms to stop and 20 ms to start, and for each call of a program one is started that does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from pydantic import SecretBytes

from meshd.config import NodeApiSettings
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.agents import AgentQueues
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.munge_key.controller import MungeKeyController
from meshd.daemon.munge_key.head import HeadMunge
from meshd.daemon.munge_key.wiring import build
from meshd.daemon.observe.source import Source
from meshd.munge import headkey
from meshd.munge.client import MungeClient
from meshd.munge.key import MungeKeyStore, fingerprint
from meshd.munge.rotation import MungeStage
from meshd.runtime.clock import SystemClock
from meshd.runtime.run import Result, run
from meshd.slurm.client import SlurmClient
from meshd.store.auth_rotations import AuthRotations
from meshd.store.journal import Journal
from meshd.store.munge_rotations import MungeRotations
from tests.bench import fleet, hollow
from tests.bench.report import Row, report

MUNGED_S = 0.02
OLD = SecretBytes(b"o" * 1024)
TARGET_S, SPREAD_TARGET_S = 10.0, 1.0
REFUSED_PAUSE_S = (1.0, 2.0)
"""As the real agent's after a refusal: a second, and a little at random."""
CREDENTIAL = "MUNGE:AwQFAAB:"


class MungeNode:
    """A node with munge, which proves it with the head after each change."""

    def __init__(self, index: int) -> None:
        self._keys = {"key": fingerprint(OLD), "staged": "", "previous": ""}
        self._proved = True

    def report(self) -> dict[str, Any]:
        """Its keys."""
        beat = {"slurmd_alive": True, "munge_key": self._keys["key"], "munge_key_staged": self._keys["staged"]}
        return {"munge_ok": self._proved, "heartbeat": beat}

    async def obey(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        """As the agent does, without a munged."""
        match args.get("action", verb):
            case "stage" | "put" as action:
                key = fingerprint(SecretBytes(base64.b64decode(args["key_b64"])))
                self._keys["staged" if action == "stage" else "key"] = key
                self._proved = self._proved and action == "stage"
                return {"fingerprint": key}
            case "switch":
                return await self._switch(args["fingerprint"], args["at_unix"], args["away_s"])
            case "forget":
                self._keys |= {"staged": "", "previous": ""}
        return {}

    async def _switch(self, name: str, at_unix: float, away_s: float) -> dict[str, Any]:
        assert name in {self._keys["staged"], self._keys["previous"]}
        await asyncio.sleep(max(at_unix - time.time(), 0.0))
        stopped = time.time()
        await asyncio.sleep(MUNGED_S)
        await asyncio.sleep(max(at_unix + away_s - time.time(), 0.0) + MUNGED_S)
        self._keys |= {"previous": self._keys["key"], "key": name}
        self._proved = False
        return {"stopped_unix": stopped, "started_unix": time.time()}

    async def settle(self, post: hollow.Post) -> None:
        """Prove munge both ways."""
        while not self._proved:
            answer = await post("/v1/munge", {"credential": CREDENTIAL})
            self._proved = answer is not None
            if not self._proved:
                await asyncio.sleep(random.uniform(*REFUSED_PAUSE_S))


class Programs:
    """What munge, unmunge and scontrol print, and a process started for each."""

    def __init__(self, count: int) -> None:
        self._nodes = "\n".join(fleet.scontrol_nodes(count))
        self.calls = 0

    async def __call__(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None,
        env: Mapping[str, str] | None = None, check: bool = True,
    ) -> Result:  # fmt: skip
        """A Runner."""
        self.calls += 1
        await run(["true"], timeout_s=timeout_s, stdin=stdin)
        match argv[:3]:
            case ["munge", *_]:
                text = CREDENTIAL
            case ["scontrol", "ping", *_]:
                text = "Slurmctld(primary) at head is UP"
            case ["scontrol", "show", "nodes"]:
                text = self._nodes
            case ["scontrol", "show", "config"]:
                text = "SLURM_VERSION = 24.11.5\n"
            case _:
                text = ""
        return Result(tuple(argv), 0, text, "")


class HeadUnit(threading.Thread):
    """meshd-munge.path and its service: serves each request, around a munged that is two pauses."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._request, self.answer = directory / headkey.REQUEST, directory / "answer.json"
        (directory / "munge.key").write_bytes(OLD.get_secret_value())
        self._munge = headkey.Munge(directory / "munge.key", lambda _: time.sleep(MUNGED_S), lambda: True)
        self.over = False

    def run(self) -> None:
        """Until `over`."""
        while not self.over:
            if self._request.exists():
                headkey.serve(self._request, self.answer, self._munge)
            time.sleep(0.005)


async def measure(count: int) -> dict[str, float]:
    """One rotation over `count` nodes."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        directory, clock, programs = Path(name), SystemClock(), Programs(count)
        journal = Journal(directory / "journal.db")
        for i in range(1, count + 1):
            journal.put(fleet.ready(i), "phase", "ready", datetime.now(UTC))
        machine_store, queues = MachineStore(journal, clock, lambda: None), AgentQueues()
        unit, slurm, munge = HeadUnit(directory), SlurmClient(programs, 10.0), MungeClient(programs)
        source = Source("slurm", slurm.view, clock, interval_s=lambda: 5.0, changed=lambda: None)
        await source.read_once()
        rotations = MungeRotations(journal)
        controller = build(
            journal, rotations, ActiveRotations(AuthRotations(journal), rotations), MungeKeyStore(directory),
            HeadMunge(directory, munge, slurm, clock, answer=unit.answer), queues, source, clock,
            poll_hold_s=NodeApiSettings().poll_hold_s, credential=lambda: OLD,
        ).controller  # fmt: skip
        unit.start()
        head = hollow.Head(machine_store, queues, directory, controller, munge)
        async with hollow.serving(head, count, MungeNode):
            loop = asyncio.create_task(controller.run())
            seen = await _rotate(controller, programs)
            assert len(controller.current.confirmed) == count
            seen["events"] = len([e for e in journal.events(0, 10_000) if e.kind == "munge_key"])
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
        unit.over = True
        unit.join()
        journal.close()
        return seen


async def _rotate(controller: MungeKeyController, programs: Programs) -> dict[str, float]:
    """From the order to DONE, and the time of each stage."""
    meter, calls, stages = hollow.Meter(), programs.calls, dict[str, float]()
    controller.begin("bench", ())
    stage, since_s = controller.current.stage, meter.read()["seconds"]
    async with asyncio.timeout(300):
        while controller.active:
            await asyncio.sleep(0.01)
            if controller.current.stage is not stage:
                now_s = meter.read()["seconds"]
                stages[f"{stage.value}_s"], stage, since_s = now_s - since_s, controller.current.stage, now_s
    done = controller.current
    assert done.stage is MungeStage.DONE, done.taken_back
    return {
        **meter.read(), **stages, "spread_s": done.spread_ms / 1000, "longest_away_s": done.longest_away_ms / 1000,
        "programs": programs.calls - calls,
    }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    seen = asyncio.run(measure(arguments.nodes))
    rows = [
        Row(f"{arguments.nodes} nodes: order to done", seen["seconds"], "s", TARGET_S),
        Row("of which staged", seen["stage_s"], "s"),
        Row("of which agreed and switched (the lead is 2 s)", seen["switch_s"], "s"),
        Row("of which proved", seen["verify_s"], "s"),
        Row("first munged gone to last one back", seen["spread_s"], "s", SPREAD_TARGET_S),
        Row("the head's CPU for it", seen["cpu_s"], "s"),
        Row("programs started on the head", seen["programs"], ""),
    ]
    report("munge_rotation", rows, {"nodes": arguments.nodes, "seen": seen})


if __name__ == "__main__":
    main()
