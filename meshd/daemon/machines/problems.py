"""Machines that fail or do not die, pools that lack machines, and rows of the journal that cannot be read. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode, WarningCode
from meshd.daemon.reporting import problem
from meshd.model.cooldown import CooldownKey
from meshd.model.desired import Desired
from meshd.model.machine import FailureCause, Machine, Phase
from meshd.model.observed import Fresh, Snapshot
from meshd.model.plan import Warn
from meshd.plan.failure_rules import cause_of_words
from meshd.plan.scale import supply_gpus
from meshd.store.unreadable import Unreadable

ARRIVING = frozenset({Phase.BOOTING, Phase.JOINING, Phase.CONFIGURING, Phase.TESTING})

_JOURNAL_CURES = {
    "targets": "set the target of {key} again with `meshctl scale --pool {key} --gpus N`",
    "blocks": "nothing: meshd tries again what it had left alone",
    "auth_rotations": "`meshctl rotate-key` begins another rotation",
    "auth_rotation_nodes": "`meshctl rotate-key --status` shows how the rotation stands",
    "munge_rotations": "`meshctl rotate-key --munge` begins another rotation",
    "machine_keys": "an auth key with the description 'meshd {key}' may still be valid: look in the admin console",
}


def tick(failure: str) -> Iterable[ProblemView]:
    """Why the last tick failed; nothing for ""."""
    if failure:
        yield problem(ProblemCode.TICK_FAILED, "error", failure, "check the disk that holds meshd's state")


def machines(found: Iterable[Machine], steps_failed: Mapping[str, str]) -> Iterable[ProblemView]:
    """Machines that were given up, that do not die, or whose last step failed.

    Args:
        found: those that are not GONE.
        steps_failed: by machine's name, why its last step failed.
    """
    for machine in found:
        if machine.phase is Phase.LOST:
            yield problem(
                ProblemCode.MACHINE_LOST,
                "error",
                f"{machine.name} costs {machine.usd_per_hour:.2f} USD/h and {machine.provider} does not end it: "
                f"asked {machine.terminate_calls} times",
                f"end {machine.instance_id or machine.name} in {machine.provider}'s console; meshd keeps asking",
                since=machine.phase_since,
                machine=machine.name,
                pool=machine.pool,
            )
        elif machine.failure:
            text = f"{machine.name} was given up: {machine.failure}"
            yield _of(machine, ProblemCode.MACHINE_FAILED, text, "see `meshctl events`", since=machine.phase_since)
        elif machine.phase in ARRIVING and machine.problem:
            cure = f"meshd tries until the phase's deadline; `meshctl events --machine {machine.name}` tells more"
            text = f"{machine.name} is {machine.phase.value}: {machine.problem}"
            yield _of(machine, ProblemCode.MACHINE_LATE, text, cure, since=machine.phase_since)
        elif machine.phase is Phase.READY and machine.problem:
            cure = "its agent tries again (docs/troubleshooting.md)"
            yield _of(machine, ProblemCode.AGENT_TROUBLE, f"{machine.name}: {machine.problem}", cure)
        if machine.name in steps_failed:
            text = f"{machine.name}: {steps_failed[machine.name]}"
            yield _of(machine, ProblemCode.STEP_FAILED, text, "nothing: meshd tries again by itself")


def _of(machine: Machine, code: ProblemCode, text: str, cure: str, since: datetime | None = None) -> ProblemView:
    return problem(code, "warning", text, cure, since=since, machine=machine.name, pool=machine.pool)


def pools(
    desired: Desired, found: Iterable[Machine], warnings: Iterable[Warn], snapshot: Snapshot
) -> Iterable[ProblemView]:
    """What keeps a pool from its target. It is blocking when no time will mend it and no machine is on its way."""
    found = list(found)
    offers_known = any(isinstance(listing, Fresh) for listing in snapshot.offers.values())
    for warning in warnings:
        if not warning.holds_back:
            continue
        pool = desired.pools.get(warning.subject)
        coming = [m for m in found if pool and m.pool == pool.name and m.phase is not Phase.READY and not m.removal]
        yield problem(
            warning.code,
            "error" if pool else "warning",
            warning.reason if pool else f"{warning.subject}: {warning.reason}",
            warning.cure or _cure_of(warning.reason),
            pool=warning.subject if pool else "",
            blocking=bool(pool) and offers_known and not coming,
        )
    for pool in desired.pools.values():
        cooldown = desired.cooldowns.get(CooldownKey.of_pool(pool.name))
        target = desired.target(pool)
        short = target is not None and supply_gpus([m for m in found if m.pool == pool.name]) < target.gpus
        if cooldown is not None and not short:
            yield problem(WarningCode.POOL_COOLING, "warning", cooldown.reason, "see `meshctl events`", pool=pool.name)


def _cure_of(reason: str) -> str:
    """What would let a pool have its machines, by what holds it back. Waiting does not raise a quota."""
    if cause_of_words(reason) is FailureCause.QUOTA:
        return "ask the provider for a higher quota, or allow another provider or region"
    return "allow another provider, region or price, or wait: meshd tries again"


def journal(
    unreadable: Iterable[Unreadable], found: Iterable[Machine], targets: Collection[str]
) -> Iterable[ProblemView]:
    """Rows of the journal that could not be read; each is kept in its table `unreadable`.

    Args:
        unreadable: the rows.
        found: machines that are not GONE.
        targets: names of pools that have a target.
    """
    why = {row.key: row.why for row in unreadable if row.table == "machines"}
    for machine in found:
        if machine.unreadable_since is None:
            continue
        price = f"{machine.usd_per_hour:.2f} USD/h" if machine.usd_per_hour else "a price that is not known"
        what = why.get(machine.name, "damaged")
        yield problem(
            ProblemCode.JOURNAL_MACHINE_UNREADABLE,
            "error" if machine.held else "warning",
            f"the record of {machine.name} in the journal could be read only in part ({what}): meshd leaves it as it "
            f"is; it costs {price}",
            f"`meshctl remove {machine.name}` gives it back after its jobs, and meshd rents another in its place",
            since=machine.unreadable_since,
            pool=machine.pool,
            machine=machine.name,
        )
    for row in unreadable:
        if row.table in _JOURNAL_CURES and not (row.table == "targets" and row.key in targets):
            text = f"a row of {row.table} in the journal could not be read and is left out ({row.key}): {row.why}"
            cure = _JOURNAL_CURES[row.table].format(key=row.key)
            yield problem(ProblemCode.JOURNAL_ROW_UNREADABLE, "warning", text, cure, since=row.at)
