"""One life of meshd beside a simulated Slurm with power saving. The real controller cares for its free slots."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from meshd.codes import EventKind
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.slurm.slots import SlotController
from meshd.model.machine import IN_SLURM
from meshd.model.observed import Fresh, Observation, SlurmView, Snapshot, Unavailable
from meshd.plan.demand import PoweredUp, powered_up
from meshd.provider_api import Offer
from meshd.simulate.faults import Crash
from meshd.simulate.life import NOWHERE, Life
from meshd.simulate.queue import QueueWorld


class QueueLife(Life):
    """See the module. The arguments are those of Life."""

    world: QueueWorld

    def __init__(
        self, world: QueueWorld, path: Path, live: LiveSettings, offers: Mapping[str, tuple[Offer, ...]]
    ) -> None:
        self.powered_up = PoweredUp()
        super().__init__(world, path, live, offers)
        self.slots = SlotController(
            live, self.journal, world, world.clock, self,
            plan=lambda: self.reconciler.last.plan if self.reconciler.last is not None else None,
            waiting=tuple, changed=lambda: None,
        )  # fmt: skip

    @property
    def current(self) -> Observation[SlurmView]:
        """What Slurm said last."""
        last = self.reconciler.last
        return last.snapshot.slurm if last is not None else Unavailable("", self.world.clock.start)

    def snapshot(self) -> Snapshot:
        """What every source says now, unless it cannot be read, or its reader is slow."""
        world = self.world
        seen: Fresh[SlurmView] | Unavailable = self.fresh("slurm", world.show(), down=world.slurm_down)
        if world.chance(0.1) and self.old_slurm is not None:
            seen = self.old_slurm  # its reader is slow, or stuck
        elif isinstance(seen, Fresh):
            self.old_slurm = seen
        self.powered_up = powered_up(self.powered_up, seen.value if isinstance(seen, Fresh) else None)
        settable: dict[str, str] = {
            m.slot: m.tailnet_ip for m in self.journal.machines() if m.phase in IN_SLURM and m.tailnet_ip
        }
        down = world.clock.t_s < world.tailnet_down_until_s
        return Snapshot(
            instances=self.listings(),
            offers=self.offered(),
            tailnet=self.lag.heard(self.fresh("tailnet", self.tailnet(), down=down)),
            slurm=seen,
            node_addrs=dict(world.published),
            settable_addrs=settable,
            reports=dict(self.reports.current),
            by_person=self.powered_up.slots,
        )

    def publish(self) -> None:
        """The rewritten file follows the addresses."""
        world = self.world
        world.published = {
            m.slot: m.tailnet_ip
            for m in self.journal.machines()
            if m.phase in IN_SLURM and m.tailnet_ip and not m.left_slurm
        }
        for slot in world.slots:
            world.addrs[slot] = world.published.get(slot, NOWHERE)

    async def care_for_slots(self) -> None:
        """What the plan says of Slurm's slots: what cannot be had goes back, what nobody wants is switched off."""
        with suppress(Crash):
            await self.slots.reconcile()

    def hear_notices(self) -> None:
        """Agents tell that their cloud takes the machine back."""
        world = self.world
        for instance, ends_s in world.notices.items():
            machine = world.machines[instance]
            record = self.journal.machine(machine.token)
            if record is None or machine.ended_s is not None or record.preempted_at is not None:
                continue
            if record.phase in IN_SLURM and record.facts is not None and record.instance_id == instance:
                ends_at = world.clock.now() + timedelta(seconds=ends_s - world.clock.t_s)
                self.machine_store.node_change(
                    record.name, EventKind.SPOT_NOTICE, "its cloud takes it back", preempted_at=ends_at
                )
