"""The real services of the head API over a simulated cloud, tailnet and Slurm, in a thread with an event loop."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.auth import Accounts, Authorizer
from meshd.api.monitoring import MonitoringPages
from meshd.api.server import HeadApiServer
from meshd.config import TimingSettings
from meshd.daemon.head_api.events import EventService
from meshd.daemon.head_api.explain import ExplainService
from meshd.daemon.head_api.machines import MachineService
from meshd.daemon.head_api.offers import OfferService
from meshd.daemon.head_api.scale import ScaleService
from meshd.daemon.head_api.state import HeadState
from meshd.daemon.head_api.status import StatusService
from meshd.daemon.nodes.wiring import NodeReporter
from meshd.daemon.observe.report import SourceReporter
from meshd.daemon.observe.slurm_ping import SlurmPing
from meshd.daemon.reporting import Report, Reporter
from meshd.daemon.slurm.head_node import HeadNode
from meshd.model.desired import Desired, Policy, Pool, Target
from meshd.model.machine import Machine, Phase
from meshd.obs.metrics import Metrics
from meshd.provider_api import Offer
from meshd.runtime.clock import SystemClock
from meshd.simulate.faults import Answer, Called
from meshd.simulate.world import CLOUD, World
from tests.clocks import SimClock
from tests.host_room import host_parts
from tests.live import live_settings
from tests.node_room import node_parts
from tests.property.sim import START, Daemon
from tests.unit.api.answers import Answers

T = TypeVar("T")

OFFERS = tuple(
    Offer(CLOUD, "eu-west-1", f"eu-west-1{zone}", "p4d.24xlarge", "a100-sxm", 4, 40, 96, 1_000_000, 10.0 + step)
    for step, zone in enumerate("abc")
)
TICK_S = 10.0
"""Of the simulated time."""


class _Still(random.Random):
    """Nothing happens by chance: no job begins by itself, and every machine boots in its time."""

    def random(self) -> float:
        return 0.999


class _World(World):
    """A cloud that may have only so many machines more."""

    left = 1000

    def fate(self, offer: Offer) -> Called:
        if offer.key in self.sold_out or self.left <= 0:
            return Called(Answer.SOLD_OUT)
        self.left -= 1
        return Called(Answer.MADE, 0.0)


class _Daemon(Daemon):
    def __init__(self, world: World, path: Path) -> None:
        pool = Pool("a100", "a100", 4, 8, (CLOUD,))
        super().__init__(world, path, pool, Policy(), OFFERS, TimingSettings())
        self.pools = {"a100": self.pool}

    def desired(self) -> Desired:
        return replace(super().desired(), pools=self.pools)


WITHOUT_API: Any = SimpleNamespace(api=None)


class _Given(Reporter):
    """Problems that a test gives."""

    def __init__(self, given: list[s.ProblemView]) -> None:
        self._given = given

    def problems(self) -> list[s.ProblemView]:
        return self._given


class _Files:
    """Slurm's files, all well."""

    def view(self) -> s.PublishView:
        return s.PublishView()


HEAD = "tower"
"""The head's name."""


class SimHead(Answers):
    """A head whose pool `a100` has machines with 4 GPUs at 10 USD per hour, 8 at most.

    What the real services do not answer here (prices, keys, doctor, reload), a test gives.

    Attributes:
        frozen: no tick begins, and no time passes.
        problems: more than those of the simulation.
        followers: what follows each tick.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frozen = False
        self.problems: list[s.ProblemView] = []
        self.followers: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._directory = tempfile.TemporaryDirectory(prefix="head")
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.world = _World(_Still(), SimClock(START), faults=False)
        self.do(self._start)

    def _start(self) -> None:
        self.daemon = daemon = _Daemon(self.world, Path(self._directory.name) / "journal.db")
        self.journal = daemon.journal
        daemon.reconciler.tick()
        self.state = state = HeadState(
            daemon.machine_store, daemon.reconciler, daemon.desired, daemon.snapshot, self.world.clock
        )
        live, nodes = live_settings(), node_parts(daemon.machine_store)
        ping = SlurmPing(_yes, lambda: None, self.world.clock)
        report = Report(
            SourceReporter(daemon.snapshot, self.journal, ping), daemon.reconciler, _Given(self.problems),
            NodeReporter(live, daemon.machine_store, nodes, daemon.desired, daemon.snapshot, WITHOUT_API),
        )  # fmt: skip
        status = StatusService(
            state, live, slurm_files=_Files(), slurm_ping=ping, report=report,
            tailnet=cast("Any", SimpleNamespace(table=SimpleNamespace(version="1.102.5"))),
            head_node=HeadNode(live, cast("Any", None), HEAD), usd_so_far=lambda _: 0.0,
        )  # fmt: skip
        scale = ScaleService(state, look_at_slurm=_nothing, look_at_key=_nothing)
        hosts = host_parts(daemon.machine_store, desired=daemon.desired).invitations
        machines = MachineService(state, self.world, hosts)
        self.read(e.STATUS, status.status)
        self.read(e.NODES, status.nodes)
        self.read(e.VERSION, status.version)
        self.read(e.PLAN, scale.plan)
        self.read(e.PREVIEW, scale.preview)
        self.write(e.SCALE, scale.scale)
        self.read(e.OFFERS, OfferService(state, _nothing).offers)
        self.read(e.EXPLAIN, ExplainService(state, None).explain)
        self.read(e.EVENTS, EventService(replace(state, clock=SystemClock()), machines).events)
        self.write(e.DRAIN, machines.drain)
        self.write(e.UNDRAIN, machines.undrain)
        self.write(e.REMOVE, machines.remove)
        self.read(e.HOSTS, hosts.hosts)
        self.write(e.INVITE, hosts.invite)

    def do(self, what: Callable[[], T]) -> T:
        """Do something where the services run."""

        async def done() -> T:
            return what()

        return self.run(done())

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(60)

    async def tick(self) -> None:
        self.world.move_on(TICK_S)
        self.daemon.agents_act()
        self.daemon.reconciler.tick()
        await self.daemon.settle()
        for follow in self.followers:
            await follow()

    def grow(self, machines: int) -> list[Machine]:
        """Have so many machines READY."""

        async def grown() -> None:
            target = Target("a100", 4 * machines, spread=True)
            self.journal.set_target(target, "given", self.world.clock.now())
            for _ in range(50):
                await self.tick()
                if [m.phase for m in self.journal.machines()] == [Phase.READY] * machines:
                    return
            raise AssertionError([(m.name, m.phase, m.reason) for m in self.journal.machines()])

        self.run(grown())
        return self.machines

    @property
    def machines(self) -> list[Machine]:
        return sorted(self.do(self.journal.machines), key=lambda m: m.slot)

    @property
    def phases(self) -> list[str]:
        return [m.phase.value for m in self.machines]

    @property
    def target(self) -> Target | None:
        return self.do(self.journal.targets).get("a100")

    def set_target(self, gpus: int) -> None:
        """Somebody else sets it."""
        self.do(lambda: self.journal.set_target(Target("a100", gpus), "said", self.world.clock.now()))

    def sell_out(self, left: int = 0) -> None:
        """The cloud has only so many machines from now on."""
        self.world.left = left

    def event(self, kind: str, text: str, machine: str = "") -> None:
        self.do(lambda: self.journal.event(self.world.clock.now(), kind, text, machine))

    def drained(self, slot: str) -> bool:
        return "DRAIN" in self.world.nodes[slot].states

    def close(self) -> None:
        async def end() -> None:
            await self.daemon.kill()

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()
        self._directory.cleanup()


async def _yes() -> bool:
    return True


async def _nothing() -> None:
    """There is nothing newer to read."""


@contextmanager
def serve(
    head: SimHead, socket: Path, *, group: str = "no-such-group", own_uid: int = 0, accounts: Accounts | None = None
) -> Iterator[SimHead]:
    """The head behind a real server on a real socket. A tick begins every 20 ms, unless it is frozen."""
    authorizer = Authorizer(group, own_uid=own_uid, accounts=accounts)
    server = HeadApiServer(
        head, path=socket, authorizer=authorizer, monitoring=MonitoringPages(Metrics().registry, list),
        clock=SystemClock(),
    )  # fmt: skip

    async def ticks() -> None:
        while True:
            if not head.frozen:
                await head.tick()
            await asyncio.sleep(0.02)

    async def start() -> asyncio.Task[None]:
        await server.start()
        return asyncio.create_task(ticks())

    async def stop(ticking: asyncio.Task[None]) -> None:
        await server.stop()
        ticking.cancel()
        await asyncio.wait({ticking})
        if not ticking.cancelled():
            ticking.result()

    ticking = head.run(start())
    try:
        yield head
    finally:
        head.run(stop(ticking))
