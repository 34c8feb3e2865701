"""The munge key's controller with agents that poll and a head whose munge is two variables."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretBytes

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.node_schema import HeartbeatIn, PollIn, ResultIn
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.agents import AgentQueues
from meshd.daemon.munge_key.nodes import POLL_SLACK_S
from meshd.daemon.munge_key.wiring import build
from meshd.model.machine import Phase
from meshd.munge.key import MungeKeyStore, fingerprint
from meshd.munge.rotation import HeadView, MungeRotation, MungeStage
from meshd.munge.rotation_steps import SwitchTimings
from meshd.store.auth_rotations import AuthRotations
from meshd.store.journal import Journal
from meshd.store.munge_rotations import MungeRotations
from tests.clocks import LoopClock
from tests.sources import fresh
from tests.unit.worlds import NOW, machine, node, slurm

OLD = SecretBytes(b"o" * 1024)
OLD_NAME = fingerprint(OLD)
SILENT_S = 0.5
TIMINGS = SwitchTimings(lead_s=0.4, verify_s=3.0, again_s=0.05, away_s=0.0)
ROOT = Actor(uid=0, gid=0, pid=1, user="root", may_write=True)


class Head:
    """The head's unit, which obeys unless `refuses` is set."""

    def __init__(self) -> None:
        self.view = HeadView()
        self.away: tuple[float, float] | None = None
        self.key, self.staged, self.previous = OLD_NAME, "", ""
        self.refuses = ""
        self.works = True
        self.days = 3
        self.auth = "auth/munge"

    async def stage(self, key: SecretBytes) -> None:
        if self.refuses:
            self.view = replace(self.view, failure=self.refuses, moment=None)
            return
        self.staged = fingerprint(key)
        self.view = replace(self.view, key=self.key, staged=self.staged, failure="", moment=None)

    async def switch(self, name: str, at: datetime, away_s: float) -> None:
        self.view = replace(self.view, busy=True, failure="", moment=at)
        await asyncio.sleep(max(0.0, (at - LoopClock().now()).total_seconds()))
        if not self.refuses and self.key != name:
            assert name in {self.staged, self.previous}
            self.key, self.previous = name, self.key
            self.away = (at.timestamp(), at.timestamp() + 0.1)
        self.view = replace(self.view, busy=False, key=self.key, failure=self.refuses, moment=at)

    async def round_trip(self) -> None:
        """munged works."""

    async def auth_type(self) -> str:
        return self.auth

    async def made_at(self) -> datetime:
        return LoopClock().now() - timedelta(days=self.days)

    def forget(self) -> None:
        self.view, self.away = HeadView(), None

    async def look(self) -> None:
        self.view = replace(self.view, works=self.works)


class Agent:
    """A node agent that polls."""

    def __init__(self, lab: MungeLab, name: str, key: bytes = OLD.get_secret_value()) -> None:
        self.lab = lab
        self.name = name
        self.pause_s = 0.0
        self.keys = {"key": key, "staged": b"", "previous": b""}
        self.verbs: list[str] = []
        self.results: list[ResultIn] = []
        self.deaf: tuple[str, ...] = ()
        self.task: asyncio.Task[None] | None = None

    def name_of(self, which: str) -> str:
        key = self.keys[which]
        return hashlib.sha256(key).hexdigest()[:16] if key else ""

    def start(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        assert self.task
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            beat = HeartbeatIn(
                slurmd_alive=True, munge_key=self.name_of("key"), munge_key_staged=self.name_of("staged")
            )
            proved = self.name_of("key") == self.lab.head_key
            report = PollIn(munge_ok=proved, heartbeat=beat, results=tuple(self.results))
            self.results = []
            self.lab.controller.note_report(self.name, report)
            for command in await self.lab.agents.poll(self.name, report.results, 0.2):
                args = command.to_wire()["args"]
                action = str(args.get("action", command.verb))
                self.verbs.append(action)
                why = f"{action} does not work here" if action in self.deaf else await self._obey(action, args)
                self.results.append(ResultIn(id=command.id, ok=not why, detail=why, data={}))
            await asyncio.sleep(self.pause_s)

    async def _obey(self, action: str, args: dict[str, Any]) -> str:
        """Why it cannot; "" when it has done it."""
        if action in {"stage", "put"}:
            self.keys["staged" if action == "stage" else "key"] = base64.b64decode(args["key_b64"])
        elif action == "switch":
            await asyncio.sleep(max(0.0, args["at_unix"] - LoopClock().now().timestamp()))
            wanted = args["fingerprint"]
            found = next((name for name in ("staged", "previous", "key") if self.name_of(name) == wanted), "")
            if not found:
                return "it does not have this key"
            self.keys["key"], self.keys["previous"] = self.keys[found], self.keys["key"]
        elif action == "forget":
            self.keys["staged"] = self.keys["previous"] = b""
        return ""


class MungeLab:
    """The room of the munge key around a journal on disk."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.head: Head = Head()
        self.agents = AgentQueues()
        self.seen = slurm()
        self.credential = OLD
        self.journal = Journal(directory / "j.db")
        self.task: asyncio.Task[None] | None = None
        self._make()

    @property
    def head_key(self) -> str:
        """The fingerprint of the key that the head's munged uses."""
        return self.head.key

    def rotations(self) -> MungeRotations:
        """The journal's records for the next life."""
        return MungeRotations(self.journal)

    def _make(self) -> None:
        rotations = self.rotations()
        parts = build(
            self.journal, rotations, ActiveRotations(AuthRotations(self.journal), rotations),
            MungeKeyStore(self.directory), self.head, self.agents, fresh(lambda: self.seen), LoopClock(),
            poll_hold_s=SILENT_S - POLL_SLACK_S, credential=lambda: self.credential, timings=TIMINGS,
        )  # fmt: skip
        self.controller, self.service, self.age = parts.controller, parts.service, parts.age

    def node(self, number: int) -> Agent:
        one = machine(Phase.READY, index=number)
        self.journal.put(one, "phase", "ready", NOW)
        self.seen = replace(self.seen, nodes={**self.seen.nodes, one.slot: node(one)})
        return Agent(self, one.name)

    def start(self) -> None:
        self.task = asyncio.create_task(self.controller.run())

    async def restart(self) -> None:
        """kill -9 and a new start: only journal, key files and what runs outside of meshd are left."""
        assert self.task
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.journal.close()
        self.journal = Journal(self.directory / "j.db")
        self.agents, self.head.view = AgentQueues(), HeadView()
        self._make()
        self.start()

    async def until(self, stage: MungeStage, timeout_s: float = 10.0) -> MungeRotation:
        for _ in range(round(timeout_s / 0.01)):
            if self.task is not None and self.task.done():
                self.task.result()
            if self.controller.current.stage is stage:
                return self.controller.current
            await asyncio.sleep(0.01)
        raise AssertionError(f"not {stage}: {self.controller.current}, {self.controller.problem}")

    async def ask(self, action: Any = "begin", *machines: str, dry_run: bool = False) -> s.MungeRotationView:
        if action == "begin":
            return await self.service.rotate(s.RotateMungeKeyRequest(machines=machines, dry_run=dry_run), ROOT)
        if action == "abort":
            return await self.service.abort(s.AbortRotationRequest(), ROOT)
        return await self.service.act(s.MungeRotationRequest(action=action, machines=machines, dry_run=dry_run), ROOT)
