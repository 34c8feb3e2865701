"""After any history of faults and kills the rotation of the munge key has ended, and all share the head's key.

The room of the munge key is the daemon's own, around a head and agents of the test, in loop time.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from pydantic import SecretBytes

from meshd.munge.key import fingerprint
from meshd.munge.rotation import AT_ONE_MOMENT, HeadView, MungeRotation, MungeStage
from meshd.store.munge_rotations import MungeRotations
from tests.clocks import LoopClock, in_loop_time
from tests.unit.daemon.munge_lab import OLD, OLD_NAME, Agent, Head, MungeLab

ACTS = 40
QUIET_S = 60.0


class Crash(BaseException):
    """kill -9 of the daemon, at this very point."""


class Unit:
    """The head's root unit and munged, which outlive meshd. It serves one request after the other."""

    def __init__(self) -> None:
        self.keys = {OLD_NAME: OLD}
        self.key, self.staged, self.previous = OLD_NAME, "", ""
        self.refuses = ""
        self.free = asyncio.Lock()


class HeadOfOneLife(Head):
    """What one life of meshd knows of the unit."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.unit = unit

    async def stage(self, key: SecretBytes) -> None:
        if self.view.busy:
            return
        self.view = replace(self.view, busy=True, failure="", moment=None)
        async with self.unit.free:
            await asyncio.sleep(0.01)
            if not self.unit.refuses:
                self.unit.keys[fingerprint(key)] = key
                self.unit.staged = fingerprint(key)
            self._answer(None)

    async def switch(self, name: str, at: datetime, away_s: float) -> None:
        if self.view.busy:
            return
        self.view = replace(self.view, busy=True, failure="", moment=at)
        async with self.unit.free:
            await asyncio.sleep(max(0.0, (at - LoopClock().now()).total_seconds()))
            if not self.unit.refuses and self.unit.key != name:
                assert name in {self.unit.staged, self.unit.previous}
                self.unit.key, self.unit.previous = name, self.unit.key
            self._answer(at)

    def _answer(self, moment: datetime | None) -> None:
        unit = self.unit
        self.view = HeadView(unit.key, unit.staged, busy=False, failure=unit.refuses, moment=moment, works=True)


class CrashingRotations(MungeRotations):
    """The journal's records; the controller may be killed right before or after it has written one."""

    lab: Chaos

    def put(self, rotation: MungeRotation, text: str, at: datetime) -> MungeRotation:
        risky = asyncio.current_task() is self.lab.task and self.lab.faults
        if risky and self.lab.rng.random() < 0.05:
            raise Crash
        super().put(rotation, text, at)
        if risky and self.lab.rng.random() < 0.05:
            raise Crash
        return rotation


class Chaos(MungeLab):
    """Nodes that come, go, fall silent and refuse; a unit that refuses; people who change their minds; kill -9."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.faults = True
        self.unit = Unit()
        self.nodes: dict[str, Agent] = {}
        super().__init__(directory)

    def _make(self) -> None:
        self.head = HeadOfOneLife(self.unit)
        self.credential = self.unit.keys[self.unit.key]  # systemd hands over the head's key of this moment
        super()._make()

    @property
    def head_key(self) -> str:
        return self.unit.key

    def rotations(self) -> MungeRotations:
        made = CrashingRotations(self.journal)
        made.lab = self
        return made

    def join(self) -> None:
        agent = self.node(len(self.nodes) + 1)
        agent.keys["key"] = self.controller.keys.for_joining().get_secret_value()
        self.nodes[agent.name] = agent
        agent.start()

    def up(self) -> list[Agent]:
        return [agent for agent in self.nodes.values() if agent.task is not None and not agent.task.done()]

    def slurm_says(self, agent: Agent, *states: str) -> None:
        slot = agent.name.removeprefix("lab-").rpartition("-")[0]
        nodes = {**self.seen.nodes, slot: replace(self.seen.nodes[slot], states=frozenset(states))}
        self.seen = replace(self.seen, nodes=nodes)

    async def act(self) -> None:
        agent = self.rng.choice(list(self.nodes.values()))
        rotation = self.controller.active
        match self.rng.choice(
            ["deaf", "hear", "away", "away", "back", "back", "refuse", "obey", "kill", "join", "ask"]
        ):
            case "deaf":
                agent.deaf = tuple(self.rng.sample(["stage", "switch", "put"], 2))
            case "hear":
                agent.deaf = ()
            case "away" if agent in self.up():
                await agent.stop()
                self.slurm_says(agent, *(["DOWN", "NOT_RESPONDING"] if self.rng.random() < 0.7 else ["IDLE"]))
            case "back":
                self.return_of(agent)
            case "refuse" if self.rng.random() < 0.3:
                self.unit.refuses = "systemd says no"
            case "obey":
                self.unit.refuses = ""
            case "kill":
                await self.restart()
            case "join" if len(self.nodes) < 6:
                self.join()
            case "ask" if rotation is None:
                await self.ask()
            case "ask" if self.rng.random() < 0.3:
                await self.ask("abort" if self.rng.random() < 0.7 else "waive", agent.name)

    def behind(self) -> list[str]:
        """Nodes with the other key of the last rotation. One with a key from before it gets the key when it rejoins."""
        last = self.controller.current
        old = {last.old, last.new} - {last.target}
        return [agent.name for agent in self.nodes.values() if agent.name_of("key") in old]

    def return_of(self, agent: Agent) -> None:
        if agent not in self.up():
            agent.start()
            self.slurm_says(agent, "IDLE")

    async def live(self, seconds: float) -> None:
        """Let time pass; a daemon that was killed starts again."""
        await asyncio.sleep(seconds)
        assert self.task is not None
        if self.task.done():
            assert isinstance(self.task.exception(), Crash), self.task.exception()
            await self.restart()
        for agent in self.nodes.values():
            if agent.task is not None and agent.task.done() and not agent.task.cancelled():
                agent.task.result()
        self.judge()

    def judge(self) -> None:
        """What must hold at any time."""
        rotation = self.controller.last
        assert self.controller.keys.for_joining(), "a machine can always join"
        if rotation is None or rotation.stage in AT_ONE_MOMENT or self.unit.free.locked():
            return
        assert self.unit.key == rotation.target, f"the head has another key than {rotation.stage} says"
        if not rotation.ended and rotation.stage is not MungeStage.GENERATE:
            assert rotation.old in self.controller.fleet().keys, "the old key is kept until the end"


async def live_through(directory: Path, seed: int) -> MungeStage:
    """One history: faults, then none; every promise is checked on the way and at the end."""
    lab = Chaos(directory, seed)
    for _ in range(lab.rng.randrange(1, 4)):
        lab.join()
    lab.start()
    await lab.live(0.3)
    await lab.ask()
    for _ in range(ACTS):
        await lab.live(lab.rng.uniform(0.05, 0.8))
        await lab.act()
    lab.faults, lab.unit.refuses = False, ""
    for agent in lab.nodes.values():
        agent.deaf = ()
        lab.return_of(agent)
    for _ in range(round(QUIET_S)):
        await lab.live(1.0)
        if lab.controller.active is None and not lab.behind():
            break
    last = lab.controller.last
    assert last is not None and last.ended, (seed, last, lab.controller.problem)
    assert lab.unit.key == last.target and not lab.behind(), (seed, last)
    await lab.live(3.0)
    assert {path.stem for path in (directory / "munge-keys").iterdir()} <= {last.target}
    assert lab.controller.keys.name() == lab.unit.key
    assert lab.task is not None
    lab.task.cancel()
    for agent in lab.nodes.values():
        await agent.stop()
    await asyncio.gather(lab.task, return_exceptions=True)
    lab.journal.close()
    return last.stage


@pytest.mark.parametrize("block", range(4))
@in_loop_time
async def test_every_history_ends_with_one_key(block: int, tmp_path: Path) -> None:
    for seed in range(block * 8, block * 8 + 8):
        await live_through(tmp_path / str(seed), seed)
