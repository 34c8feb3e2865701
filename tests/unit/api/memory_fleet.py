"""A fleet in memory: machines go through their phases tick by tick, and leave when nothing keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from meshd.api.schema import EventRow, ProblemView

WAY = ("requested", "launching", "booting", "joining", "configuring", "testing", "ready")
SUPPLY = frozenset(WAY)
OFFER = "aws/eu-west-1/p4d.24xlarge"


@dataclass
class Box:
    name: str
    slot: str
    pool: str
    gpus: int
    phase: str
    since: datetime
    reason: str = ""
    failure: str = ""
    drained: bool = False


@dataclass
class Pool:
    gpus_per_node: int = 4
    max_nodes: int = 8
    usd_per_hour: float = 10.0
    target: int = 0
    target_id: int | None = None


@dataclass
class MemoryFleet:
    """Pools and their machines, which get a phase further with each tick, and what is told of it."""

    pools: dict[str, Pool] = field(default_factory=lambda: {"a100": Pool()})
    boxes: list[Box] = field(default_factory=list)
    jobs: dict[str, list[str]] = field(default_factory=dict)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    no_capacity: bool = False
    refusals: list[str] = field(default_factory=list)
    frozen: bool = False

    def __post_init__(self) -> None:
        self.log: list[EventRow] = []
        self.problems: list[ProblemView] = []
        self._made = 0

    def step(self) -> None:
        """A tick of the world."""
        if self.frozen:
            return
        for box in list(self.boxes):
            self._step(box)
        for name, pool in self.pools.items():
            self._fill(name, pool)

    def _step(self, box: Box) -> None:
        if box.phase in WAY[:-1]:
            self.move(box, WAY[WAY.index(box.phase) + 1])
        elif box.phase == "draining" and not self.jobs.get(box.slot):
            self.move(box, "terminating")
        elif box.phase == "terminating":
            self.move(box, "gone")
            self.boxes.remove(box)

    def _fill(self, name: str, pool: Pool) -> None:
        if pool.target_id is None:
            return
        mine = [b for b in self.boxes if b.pool == name and b.phase in SUPPLY]
        missing = pool.target - sum(b.gpus for b in mine)
        self.problems = [p for p in self.problems if p.pool != name]
        if missing > 0 and self.no_capacity:
            text = "no offer will do: aws has no capacity for a100 in any region"
            self.problems.append(
                ProblemView(
                    severity="error",
                    text=text,
                    cure="allow another provider",
                    pool=name,
                    blocking=True,
                    since=self.now(),
                )
            )
            self.event("problem", text, pool=name)
            return
        for index in self.free(name, pool):
            if missing <= 0:
                break
            self._made += 1
            box = Box(
                f"lab-{name}-{index}-aaaaa{self._made % 10}",
                f"{name}-{index}",
                name,
                pool.gpus_per_node,
                "requested",
                self.now(),
            )
            offer = self.refusals[0] if self.refusals else OFFER
            fields = {"slot": box.slot, "offer": offer}
            self.event("phase", "requested", machine=box.name, pool=name, phase="requested", **fields)
            if self.refusals:
                self.refusals.pop(0)
                fields |= {"phase": "gone", "refusal": "no_capacity"}
                self.event("failure", "gone: nothing was rented: none", machine=box.name, pool=name, **fields)
            else:
                self.boxes.append(box)
            missing -= pool.gpus_per_node
        for box in self.surplus(name, pool.target):
            self.move(box, "draining", f"{pool.target} GPUs are wanted")

    def free(self, name: str, pool: Pool) -> list[int]:
        taken = {b.slot for b in self.boxes}
        return [i for i in range(1, pool.max_nodes + 1) if f"{name}-{i}" not in taken]

    def surplus(self, name: str, target: int) -> list[Box]:
        mine = [b for b in self.boxes if b.pool == name and b.phase in SUPPLY]
        surplus = sum(b.gpus for b in mine) - target
        leave = []
        for box in sorted(mine, key=lambda b: (bool(self.jobs.get(b.slot)), b.slot)):
            if box.gpus <= surplus:
                surplus -= box.gpus
                leave.append(box)
        return leave

    def move(self, box: Box, phase: str, reason: str = "") -> None:
        box.phase, box.since, box.reason = phase, self.now(), reason
        self.event("phase", f"{phase} {reason}".strip(), machine=box.name, pool=box.pool)

    def event(self, kind: str, text: str, *, machine: str = "", pool: str = "", **fields: str) -> None:
        row = EventRow(id=len(self.log) + 1, at=self.now(), kind=kind, text=text, machine=machine, pool=pool)
        self.log.append(row.model_copy(update={"fields": fields}))

    def add_ready(self, pool: str, index: int, **changes: Any) -> Box:
        box = Box(
            f"lab-{pool}-{index}-k7q2m{index}",
            f"{pool}-{index}",
            pool,
            self.pools[pool].gpus_per_node,
            "ready",
            self.now(),
        )
        box = replace(box, **changes)
        self.boxes.append(box)
        return box
