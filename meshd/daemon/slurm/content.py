"""What Slurm's files should say: made from the pools of the settings, the journal's machines, and Slurm's version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from meshd.config import Settings
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.slurm.held_lines import HeldLines
from meshd.errors import SlurmError
from meshd.model.desired import Promise
from meshd.model.machine import IN_SLURM, Machine
from meshd.model.observed import SlurmView
from meshd.plan.limits import as_word, usable
from meshd.plan.provider_capabilities import is_pod
from meshd.slurm.capabilities import capabilities, parse_version
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import JoinedNode, PoolLine, Rendered, render
from meshd.slurm.pools import pool_lines, promise_of, read_pools
from meshd.store.journal import Journal

log = structlog.get_logger(__name__)

SHARE = "share"
"""The feature of nodes that have all shares; pods, which cannot mount, have it never."""


class FileContent:
    """Makes the content again only when what stands in it, or Slurm's version, has changed.

    Args:
        live: the settings.
        journal: the machines.
        held: what the settings no longer have, and Slurm still does.
        pod_providers: the providers that rent pods.
        promises: what the slots of queue-driven pools promise, where that is known.

    Attributes:
        wanted: the content that was made last; None before Slurm was read.
        error: why it cannot be made; "" when it can.
        left_out: machines whose line cannot be written, each with why.
        names: the machine of each slot whose line stands in the content.
        shapes_fixed: all nodes of a pool have to be of its smallest shape: so it is before 23.11, and until Slurm was
            read.
    """

    def __init__(
        self,
        live: LiveSettings,
        journal: Journal,
        held: HeldLines,
        pod_providers: Collection[str] = (),
        promises: Callable[[], Mapping[str, Promise]] = lambda: {},
    ) -> None:
        self._live = live
        self._pod_providers = pod_providers
        self._journal = journal
        self._held = held
        self._promises = promises
        self.wanted: Rendered | None = None
        self.error = ""
        self.left_out: Mapping[str, str] = {}
        self.names: Mapping[str, str] = {}
        self.shapes_fixed = True
        self._fixed_by = ""
        self._made_for: tuple[int, Settings, str, tuple[PoolLine, ...]] | None = None
        self._made_of: list[tuple[object, ...]] | None = None
        self._pools_of: tuple[object, ...] | None = None
        self._pools_made: tuple[PoolLine, ...] | None = None
        self._promised: Mapping[str, Promise] = {}

    def make(self, view: SlurmView | None, nodes_conf: str, before: Mapping[str, Lines]) -> Rendered | None:
        """The content; None when it cannot be made.

        Args:
            view: Slurm, as it was read last; None while it cannot be read.
            nodes_conf: the text in force.
            before: its lines, which a slot keeps where no other line can be written.
        """
        settings = self._live.settings
        pools = self._pools(settings, view, nodes_conf)
        if view is None or pools is None:
            return self.wanted  # which form Slurm takes, and what must stay, is not known before Slurm was read
        key = (self._journal.revision, settings, view.version, pools)
        same_form = (
            self._made_for is not None
            and self._made_for[1] is settings
            and self._made_for[2:] == (view.version, pools)
        )  # fmt: skip
        if same_form and self._made_for is not None and self._made_for[0] == self._journal.revision:
            return self.wanted
        joined = [m for m in self._journal.machines() if _belongs(m, settings)]
        of: list[tuple[object, ...]] = [(m.slot, m.tailnet_ip, m.region, m.facts) for m in joined]
        if same_form and of == self._made_of:
            self._made_for, self.error = key, ""
            return self.wanted
        try:
            wanted = self._render(view, settings, pools, joined, before)
        except SlurmError as error:
            if str(error) != self.error:
                log.error("slurm_files_cannot_be_made", reason=str(error))
            self.error = str(error)
            return None
        self._made_for, self._made_of, self.error, self.wanted = key, of, "", wanted
        self._note_left_out(wanted, {m.slot: m.name for m in joined})
        return wanted

    def unused_ranges(self) -> str:
        """Settings that this Slurm cannot heed: it cannot have nodes of several shapes; "" when all are used."""
        pools = self._live.settings.pools.items() if self._fixed_by else ()
        mixed = [name for name, pool in pools if (pool.gpus_per_node_max or 0) > pool.gpus_per_node]
        which = ", ".join(f"pools.{name}.gpus_per_node_max" for name in mixed)
        text = f"{which} is not used: Slurm {self._fixed_by} cannot change a node's shape while it runs"
        return text if mixed else ""

    def _render(
        self,
        view: SlurmView,
        settings: Settings,
        pools: Sequence[PoolLine],
        joined: Sequence[Machine],
        before: Mapping[str, Lines],
    ) -> Rendered:
        self.shapes_fixed = not capabilities(parse_version(view.version)).may_change_shapes
        self._fixed_by = view.version if self.shapes_fixed else ""
        nodes = [_joined(machine, settings, self._pod_providers) for machine in joined]
        return render(pools, nodes, shapes_fixed=self.shapes_fixed, before=before)

    def _pools(self, settings: Settings, view: SlurmView | None, nodes_conf: str) -> tuple[PoolLine, ...] | None:
        """The pools of the settings, and what of the former ones must stay."""
        if view is None:
            return None
        promises = self._queue_driven(settings, view, nodes_conf)
        of = (settings, nodes_conf, view, self._held.revision)
        same = self._pools_of is not None and all(a is b for a, b in zip(of, self._pools_of, strict=True))
        if not same or promises != self._promised:
            self._pools_made = self._held.lines(pool_lines(settings.pools, promises), nodes_conf, view)
            self._pools_of, self._promised = of, promises
        return self._pools_made

    def _queue_driven(self, settings: Settings, view: SlurmView, nodes_conf: str) -> Mapping[str, Promise]:
        """The promises of the pools whose slots Slurm's power saving opens.

        While a promise is not known yet, the pool keeps the form and the promise that are in force.
        """
        if not view.power_saving:
            return {}
        promises, found = self._promises(), {}
        for name, pool in settings.pools.items():
            if settings.from_queue(pool):
                in_force = read_pools(nodes_conf).get(name)
                kept = promise_of(in_force) if in_force is not None and in_force.from_queue else None
                if (promise := promises.get(name) or kept) is not None:
                    found[name] = promise
        return found

    def _note_left_out(self, wanted: Rendered, names: Mapping[str, str]) -> None:
        left_out = {names.get(slot, slot): why for slot, why in wanted.left_out.items()}
        for machine in left_out.keys() - self.left_out.keys():
            log.error("machine_left_out_of_slurm_files", machine=machine, reason=left_out[machine])
        self.left_out, self.names = left_out, names


def _joined(machine: Machine, settings: Settings, pod_providers: Collection[str]) -> JoinedNode:
    facts = machine.facts
    if facts is None:
        raise SlurmError(f"{machine.name} has no facts yet")
    offer, pool = machine.offer, settings.pools[machine.pool]
    pod = is_pod(machine, pod_providers)
    features = [
        offer.provider, offer.region or machine.region, offer.gpu, "spot" if offer.spot else "ondemand",
        "pod" if pod else "vm", *([SHARE] if settings.share and not pod else []),
    ]  # fmt: skip
    return JoinedNode(
        slot=machine.slot, node_addr=machine.tailnet_ip, shape=facts.shape,
        devices=usable(facts.gpus, machine.gpus) if pool.gpus_per_node else (),
        features=tuple(as_word(feature) for feature in features if feature),
        memory_fraction=settings.slurm.memory_fraction, former_node_addrs=machine.former_ips,
    )  # fmt: skip


def _belongs(machine: Machine, settings: Settings) -> bool:
    return (
        machine.phase in IN_SLURM
        and machine.facts is not None
        and bool(machine.tailnet_ip)
        and not machine.left_slurm
        and machine.pool in settings.pools
    )
