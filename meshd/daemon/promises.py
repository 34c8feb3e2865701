"""The promises of the pools that Slurm's queue drives: one place from which the planner and Slurm's lines read them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.config import Settings
from meshd.config.pools import fixed_of, pool_of
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Observed
from meshd.daemon.reporting import problem
from meshd.model.desired import Pool, Promise
from meshd.model.hardware import NodeFacts
from meshd.model.ids import slot_index
from meshd.model.machine import IN_SLURM, Phase
from meshd.model.observed import Fresh, Observation, SlurmView, value_of
from meshd.plan.promise import ByCatalogue, by_catalogue, least_of, settled, small, small_cure, suiting, words
from meshd.provider_api import Offer, ProviderCapabilities
from meshd.runtime.clock import Clock
from meshd.store.journal import Journal
from meshd.store.promises import KeptPromise, Promises

KEEP_S = 6 * 3600.0
"""An offer counts for this long after it was seen last: lists by stock, prices at a limit and broken connections come
and go, and the promise must not follow them."""
LOOK_S = 5.0


class PoolPromises(Controller):
    """Makes the promises from what the clouds offer, and keeps them while a pool is in use.

    Args:
        live: the settings.
        journal: the machines, and the promises in force.
        able: what each enabled provider can do.
        offers: by provider, what can be rented.
        slurm: what Slurm said last.
        clock: time.
    """

    name: ClassVar[str] = "promises"

    def __init__(
        self,
        live: LiveSettings,
        journal: Journal,
        able: Mapping[str, ProviderCapabilities],
        offers: Callable[[], Mapping[str, Observation[tuple[Offer, ...]]]],
        slurm: Observed[SlurmView],
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self._live = live
        self._journal = journal
        self._able = able
        self._offers = offers
        self._slurm = slurm
        self._promises = Promises(journal)
        self._started_s = clock.monotonic_s()
        self._seen: dict[str, dict[str, tuple[Offer, float]]] = {}
        self._asked: dict[str, str] = {}
        self._read: dict[str, Observation[tuple[Offer, ...]]] = {}
        self._found: dict[str, ByCatalogue | None] = {}
        self._looked_at: Settings | None = None
        self._pruned_s = clock.monotonic_s()

    @property
    def current(self) -> Mapping[str, Promise]:
        """The promise of each pool that Slurm's queue drives and whose promise is known."""
        kept = self._promises.kept()
        settings = self._live.settings
        return {
            name: kept[name].promise
            for name, pool in settings.pools.items()
            if name in kept and settings.from_queue(pool)
        }  # fmt: skip

    async def reconcile(self) -> float:
        """Look again. Each tick wakes it besides."""
        self.look()
        return LOOK_S

    def look(self) -> None:
        """Change the promises that have to be others, and may be. Raises StoreError."""
        now_s, settings = self._clock.monotonic_s(), self._live.settings
        names = [name for name, pool in settings.pools.items() if settings.from_queue(pool)]
        if not names:
            return
        offers = dict(self._offers())
        changed = (
            settings is not self._looked_at
            or offers.keys() != self._read.keys()
            or any(offers[name] is not self._read[name] for name in offers)
            or now_s - self._pruned_s >= KEEP_S
        )
        for name in names:
            pool = pool_of(name, settings, self._able, able=self._able)
            asked = _digest(pool, settings)
            if changed or name not in self._found:
                self._found[name] = self._by_catalogue(pool, settings, asked, offers, now_s)
            self._settle(pool, settings, asked, offers, now_s)
        if changed:
            self._looked_at, self._read, self._pruned_s = settings, offers, now_s

    def _by_catalogue(
        self,
        pool: Pool,
        settings: Settings,
        asked: str,
        offers: Mapping[str, Observation[tuple[Offer, ...]]],
        now_s: float,
    ) -> ByCatalogue | None:
        seen = self._seen.setdefault(pool.name, {})
        if self._asked.get(pool.name) != asked:
            seen.clear()
            self._asked[pool.name] = asked
        known = [offer for one in offers.values() if isinstance(one, Fresh) for offer in one.value]
        seen |= {offer.key: (offer, now_s) for offer in suiting(known, pool)}
        for key in [key for key, (_, at_s) in seen.items() if now_s - at_s > KEEP_S]:
            del seen[key]
        fixed, fraction = fixed_of(settings.pools[pool.name]), settings.slurm.memory_fraction
        return by_catalogue((offer for offer, _ in seen.values()), pool, fixed, fraction)

    def _settle(
        self,
        pool: Pool,
        settings: Settings,
        asked: str,
        offers: Mapping[str, Observation[tuple[Offer, ...]]],
        now_s: float,
    ) -> None:
        kept, found = self._promises.kept().get(pool.name), self._found[pool.name]
        in_force, wanted = kept.promise if kept else None, found.promise if found else None
        if in_force is None and wanted is not None:
            wanted = least_of(wanted, self._joined(pool.name), settings.slurm.memory_fraction)
        complete = all(isinstance(offers.get(provider), Fresh) for provider in pool.providers)
        asks_other = kept is not None and kept.asked != asked
        may_rise = (asks_other and complete) or now_s - self._started_s >= KEEP_S
        promise = settled(in_force, wanted, in_use=self._in_use(pool), may_rise=may_rise)
        if promise is None or (promise == in_force and (not asks_other or promise != wanted)):
            return
        text = f"each node of pool {pool.name} promises {words(promise)}" if promise != in_force else ""
        self._promises.put(pool.name, KeptPromise(promise, asked), text, self._clock.now())

    def _joined(self, pool: str) -> list[NodeFacts]:
        machines = (m for m in self._journal.machines() if m.pool == pool and m.phase in IN_SLURM)
        return [m.facts for m in machines if m.facts is not None]

    def _in_use(self, pool: Pool) -> bool:
        """A machine is there or on its way, or a job has a slot or waits for one, or Slurm cannot be read."""
        if any(m.pool == pool.name and m.phase is not Phase.GONE for m in self._journal.machines()):
            return True
        view = value_of(self._slurm.current)
        partition = self._live.settings.pools[pool.name].partition or pool.name
        return view is None or any(
            partition in job.partition.split(",") or any(slot_index(pool.name, slot) for slot in job.nodes)
            for job in view.jobs
        )

    def problems(self) -> Iterable[ProblemView]:
        """What waits until a pool is idle, and offers that make a promise small."""
        kept, settings = self._promises.kept(), self._live.settings
        for name, pool in settings.pools.items():
            found = self._found.get(name)
            if not settings.from_queue(pool) or found is None or name not in kept:
                continue
            promise = kept[name].promise
            if found.promise != promise and kept[name].asked != self._asked.get(name):
                text = (
                    f"each node of pool {name} promises {words(promise)}; by the settings it will be "
                    f"{words(found.promise)}, once no machine and no job is in the pool"
                )
                cure = f"`meshctl scale --pool {name} --gpus 0`, and wait for its jobs"
                yield problem(ProblemCode.PROMISE_WAITS, "info", text, cure, pool=name)
            if found.far_below:
                cure = small_cure(name, found)
                yield problem(ProblemCode.PROMISE_SMALL, "warning", small(name, found), cure, pool=name)


def _digest(pool: Pool, settings: Settings) -> str:
    """What the settings ask of a pool's machines: when it changes, the promise may rise."""
    own, fraction = settings.pools[pool.name], settings.slurm.memory_fraction
    asked = (
        pool.gpu, pool.gpus_per_node, pool.gpus_per_node_max, pool.gpu_memory_min_gib, pool.arch, pool.providers,
        pool.regions, pool.spot, pool.pods, pool.max_usd_per_gpu_hour, own.cpus_min, own.memory_min_mib, fraction,
    )  # fmt: skip
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]
