"""Nodes that are unfit, and pools whose replacements become unfit too, as problems. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from meshd.api import schema as s
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem
from meshd.model.cooldown import CooldownKey
from meshd.model.desired import Desired
from meshd.model.machine import COUNTS_AS_SUPPLY, Machine, Phase, UnfitReason
from meshd.plan.fitness import Unfit, silent, unfit
from meshd.plan.plan_input import ClusterView
from meshd.plan.replace import STRIKES_TOLD
from meshd.plan.unfit_advice import cure, next_step

AT_ONCE = frozenset({UnfitReason.SILENT, UnfitReason.SPOT_NOTICE})
"""Told without a grace: the time that makes it a verdict is one already."""


def problems(machines: Sequence[Machine], desired: Desired, cluster_view: ClusterView) -> Iterable[s.ProblemView]:
    """Nodes that are not fit for longer than the grace, and pools whose replacements become unfit too.

    Of a node that waits for its jobs before it leaves only its silence counts.
    """
    by_pool: dict[str, list[Machine]] = {}
    for machine in machines:
        by_pool.setdefault(machine.pool, []).append(machine)
    for machine in machines:
        leaves = machine.phase is Phase.DRAINING and not machine.left_slurm
        found = silent(machine, cluster_view) if leaves else unfit(machine, cluster_view)
        if found is not None and (leaves or not (machine.removal or machine.failure)) and _lasts(found, cluster_view):
            yield _problem(machine, found, by_pool[machine.pool], desired, cluster_view)
    for name in desired.pools:
        cooldown = desired.cooldowns.get(CooldownKey.of_replacements(name)) or desired.expired_cooldowns.get(
            CooldownKey.of_replacements(name)
        )
        if cooldown is not None and cooldown.strikes >= STRIKES_TOLD:
            yield problem(
                ProblemCode.REPLACEMENTS_UNFIT,
                "error",
                f"{cooldown.strikes} nodes were replaced one after another, and what came in their place did not "
                f"stay fit: the cause is outside of the machines. The last: {cooldown.reason}",
                "look at slurm.conf, prologs and the image; `meshctl explain SLOT` shows slurmd's log",
                pool=name,
            )


def _lasts(found: Unfit, cluster_view: ClusterView) -> bool:
    return found.why in AT_ONCE or cluster_view.now - found.since >= timedelta(
        seconds=cluster_view.policy.unfit_grace_s
    )


def _problem(
    machine: Machine, found: Unfit, machines: Sequence[Machine], desired: Desired, cluster_view: ClusterView
) -> s.ProblemView:
    after = next_step(machine, found, machines, desired, cluster_view)
    pool = desired.pools.get(machine.pool)
    stays = found.deliberate or (pool is not None and not pool.replace_unfit)
    coming = any(
        m.phase in COUNTS_AS_SUPPLY and m.phase is not Phase.READY and m.unfit_reason is None for m in machines
    )
    return problem(
        ProblemCode.NODE_UNFIT,
        "info" if found.deliberate else "warning",
        f"{machine.slot} is not fit: {found.words}" + (f"; {after}" if after else ""),
        cure(machine, found),
        since=found.since,
        machine=machine.name,
        pool=machine.pool,
        blocking=stays and not coming,
    )
