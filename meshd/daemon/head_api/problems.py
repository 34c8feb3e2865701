"""Everything that is not as it should be, in one list, worst first. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from meshd.api.schema import ProblemView
from meshd.daemon.providers.breaker import Breaker
from meshd.daemon.providers.off import OffProvider
from meshd.errors import Fault
from meshd.model.desired import Desired
from meshd.model.ids import MachineName
from meshd.model.machine import DEVICE_GONE, IN_SLURM, UNREADABLE, FailureCause, Machine, Phase
from meshd.model.observed import Fresh, Snapshot, Unavailable
from meshd.model.plan import Warn
from meshd.model.words import ending
from meshd.plan.devices import expiring_keys, same_machine_id
from meshd.plan.failure_rules import cause_of_words
from meshd.plan.prices import refresh_words, rented_by_stale
from meshd.plan.scale import supply_gpus
from meshd.provider_api import Provider
from meshd.store.unreadable import Unreadable
from meshd.tailnet.off_api import OffApi

_ORDER = {"error": 0, "warning": 1, "info": 2}

ARRIVING = frozenset({Phase.BOOTING, Phase.JOINING, Phase.CONFIGURING, Phase.TESTING})

OFFLINE_LONG = timedelta(minutes=10)
"""A restart of tailscaled or of the machine takes less, and its agent mends what it can in less."""

DEVICE_BACK = timedelta(minutes=3)
"""A machine whose device was deleted is back within this when its auth key is good."""

KEY_URGENT = timedelta(days=3)
"""An end of a node key that is this near is an error."""

_CURES = {
    "tailnet": "check `tailscale status` on the head; nothing is destroyed while it cannot be read",
    "slurm": "check `scontrol ping` and `systemctl status slurmctld`; no node leaves while Slurm cannot be read",
    "provider": "check the credential and the cloud's status page; `meshctl doctor` tells more",
    "offers": "nothing can be rented from it until its offers can be read",
}


_CURES_BY_KIND = {
    "rate_limited": "nothing: meshd asks again by itself, more slowly; other programs may use the same account",
    "transient": "nothing: meshd asks again by itself; the cloud's status page may tell more",
    "uncertain": "nothing: meshd asks again by itself; the cloud's status page may tell more",
    "quota_exceeded": "ask the provider for a higher quota",
    "auth_failed": "mend the credential (docs/providers.md), then `systemctl restart meshd`",
    "invalid_request": "mend the provider's table in meshd.toml, then `systemctl restart meshd`",
}
"""What to do about a cloud that cannot be read, by the kind of its refusal."""


def of_sources(snapshot: Snapshot) -> Iterable[ProblemView]:
    """Sources that cannot be read, and a tailnet that cannot be believed."""
    named = {"tailnet": snapshot.tailnet, "slurm": snapshot.slurm}
    for name, seen in named.items():
        if isinstance(seen, Unavailable):
            yield _problem("error", f"{name} cannot be read: {seen.reason}", _CURES[name], since=seen.since)
    for kind, table in (("provider", snapshot.instances), ("offers", snapshot.offers)):
        for name, listing in table.items():
            if isinstance(listing, Unavailable) and not listing.reason.startswith(f"{name} is off: "):
                text = f"{name}: {kind} cannot be read: {listing.reason}"
                yield _problem("error", text, _CURES_BY_KIND.get(listing.kind, _CURES[kind]), since=listing.since)
    if isinstance(snapshot.tailnet, Fresh) and not snapshot.tailnet.value.healthy:
        words = "; ".join(snapshot.tailnet.value.problems) or "the head is not online"
        yield _problem("error", f"the head's tailnet is not well: {words}", "run `tailscale status` on the head")


def of_left_out(machines: Mapping[str, str]) -> Iterable[ProblemView]:
    """Machines whose line cannot stand in Slurm's files, each with why."""
    for machine, why in sorted(machines.items()):
        yield _problem(
            "error",
            f"it is left out of Slurm's files: {why}",
            f"`meshctl remove {machine}` replaces it; if its pool's settings are at fault, mend meshd.toml",
            machine=machine,
        )


def of_unsafe(slots: Mapping[str, str]) -> Iterable[ProblemView]:
    """Slots that keep the line that they have for now, each with why."""
    for slot, why in sorted(slots.items()):
        yield _problem("warning", why, f"see `squeue -w {slot}`; all other changes go on")


def of_off_providers(providers: Iterable[Provider]) -> Iterable[ProblemView]:
    """Providers that are enabled and cannot be used."""
    for provider in providers:
        if isinstance(provider, OffProvider):
            yield _problem("error", f"{provider.error.text}; its machines are kept, and nobody can end them",
                           provider.error.cure)  # fmt: skip


def of_tailnet_api(api: object) -> Iterable[ProblemView]:
    """A credential for the tailnet's API that cannot be used."""
    if isinstance(api, OffApi):
        yield _problem("error", f"the credential for the tailnet's API cannot be used: {api.reason}", api.cure)


def of_settings(doubts: Iterable[Fault]) -> Iterable[ProblemView]:
    """What the settings can hardly mean."""
    for fault in doubts:
        place = f" (line {fault.line})" if fault.line else ""
        cure = f"{fault.cure}; then `systemctl reload meshd`" if fault.cure else "mend it: `systemctl reload meshd`"
        yield _problem("warning", f"settings: {fault.text}{place}", cure)


def of_breakers(breakers: Mapping[str, Breaker], monotonic_s: float, now: datetime) -> Iterable[ProblemView]:
    """Clouds that are left alone for a while, since their calls fail."""
    for provider, breaker in sorted(breakers.items()):
        if breaker.is_open:
            wait_s = breaker.retry_after_s(monotonic_s)
            again = f"in {wait_s:.0f} s" if wait_s else "now"
            yield _problem(
                "error",
                f"{provider} is left alone after {breaker.failures} failed calls, and asked again {again}; the last: "
                f"{breaker.reason}",
                f"`meshctl doctor` asks {provider} at once, and goes on with it when it answers; machines there are "
                "still given back",
                since=now - timedelta(seconds=max(0.0, monotonic_s - breaker.first_opened_at_s)),
            )  # fmt: skip


def of_providers(machines: Iterable[Machine], snapshot: Snapshot) -> Iterable[ProblemView]:
    """Machines of providers that are not enabled: nobody looks after them."""
    unwatched: dict[str, list[Machine]] = {}
    for machine in machines:
        if machine.provider not in snapshot.instances and machine.phase is not Phase.REQUESTED:
            unwatched.setdefault(machine.provider, []).append(machine)
    for provider, found in sorted(unwatched.items()):
        usd = sum(machine.usd_per_hour for machine in found)
        yield _problem(
            "error",
            f"{len(found)} machines of {provider} cost {usd:.2f} USD/h, and it is not enabled: meshd can neither see "
            "nor end them",
            f"set providers.{provider}.enabled = true, then `systemctl restart meshd`, until they are gone",
        )


def of_machines(machines: Iterable[Machine], steps_failed: Mapping[str, str], now: datetime) -> Iterable[ProblemView]:
    """Machines that were given up, that do not die, or whose last step failed."""
    for machine in machines:
        if machine.phase is Phase.LOST:
            yield _problem(
                "error",
                f"{machine.name} costs {machine.usd_per_hour:.2f} USD/h and {machine.provider} does not end it: "
                f"asked {machine.terminate_calls} times",
                f"end {machine.instance_id or machine.name} in {machine.provider}'s console; meshd goes on asking",
                since=machine.phase_since, machine=machine.name, pool=machine.pool,
            )  # fmt: skip
        elif machine.failure:
            yield _problem(
                "warning", f"{machine.name} was given up: {machine.failure}", "see `meshctl events`",
                since=machine.phase_since, machine=machine.name, pool=machine.pool,
            )  # fmt: skip
        elif machine.phase in ARRIVING and machine.problem:
            yield _problem(
                "warning", f"{machine.name} is {machine.phase.value}: {machine.problem}",
                f"it is tried again until the phase's deadline; `meshctl events --machine {machine.name}` tells more",
                since=machine.phase_since, machine=machine.name, pool=machine.pool,
            )  # fmt: skip
        elif machine.phase is Phase.READY and machine.problem:
            yield _problem(
                "warning", f"{machine.name}: {machine.problem}", "its agent goes on trying (docs/troubleshooting.md)",
                machine=machine.name, pool=machine.pool,
            )  # fmt: skip
        if machine.name in steps_failed:
            yield _problem(
                "warning", f"{machine.name}: {steps_failed[machine.name]}", "meshd tries again",
                machine=machine.name, pool=machine.pool,
            )  # fmt: skip


def of_logins(machines: Iterable[Machine], snapshot: Snapshot, now: datetime) -> Iterable[ProblemView]:
    """READY nodes that control has not seen for long. Their data plane may work, and a job may run: none is ended."""
    tailnet = snapshot.tailnet
    if not isinstance(tailnet, Fresh) or not tailnet.value.healthy:
        return
    slurm = snapshot.slurm.value if isinstance(snapshot.slurm, Fresh) else None
    for machine in machines:
        peer = tailnet.value.peers.get(machine.tailnet_id)
        if machine.phase is not Phase.READY or machine.problem or peer is None or peer.online or not peer.last_seen:
            continue
        if machine.heartbeat_at is None or machine.heartbeat_at <= peer.last_seen:
            continue  # its agent is silent as well: that is told by itself
        if now - peer.last_seen < OFFLINE_LONG:
            continue
        node = slurm.nodes.get(machine.slot) if slurm else None
        answers = (
            "its slurmd answers, so it is kept" if node is not None and node.up else "it is kept while jobs may run"
        )
        minutes = (now - peer.last_seen).total_seconds() / 60
        yield _problem(
            "warning",
            f"{machine.name} is not connected to the tailnet's control server for {minutes:.0f} min; {answers}",
            "its agent mends a refused login by itself; else `systemctl restart tailscaled` there",
            since=peer.last_seen, machine=machine.name, pool=machine.pool,
        )  # fmt: skip


def of_devices(machines: Iterable[Machine], now: datetime) -> Iterable[ProblemView]:
    """Devices that were deleted while their machines run, and machines that share what only one may have."""
    machines = [machine for machine in machines if machine.phase in IN_SLURM]
    for machine in machines:
        since = machine.marks.get(DEVICE_GONE)
        if since is None:
            continue
        text = f"the tailnet device of {machine.name} was deleted while it runs: neither meshd nor Slurm reaches it"
        keyless = machine.own_key and not machine.spare_key
        cure = "its agent logs in again with the auth key that it keeps, mostly within a minute"
        if keyless:
            text += ", and it holds no spare auth key to come back with"
        late = now - since >= DEVICE_BACK
        if late and not keyless:
            minutes = (now - since).total_seconds() / 60
            text += f", and it did not come back within {minutes:.0f} min: its auth key is dead, or it keeps none"
        if late or keyless:
            place = f" (`ssh {machine.public_ip}` or the cloud's console)" if machine.public_ip else ""
            cure = (
                f"on the machine{place}: `tailscale up --auth-key=KEY --hostname={machine.name}`; or `meshctl remove "
                f"{machine.name}`. Slurm gives up its jobs SlurmdTimeout after it lost the node; meshd ends none"
            )
        severity = "error" if late or keyless else "warning"
        yield _problem(severity, text, cure, since=since, machine=machine.name, pool=machine.pool)
    for names in same_machine_id(machines):
        yield _problem(
            "warning",
            f"{', '.join(names)} have one machine id: their image holds /etc/machine-id of another machine",
            "make the image anew with an empty /etc/machine-id: logs, DHCP leases and tailscale mix such machines up",
            machine=names[0],
        )


def of_node_keys(
    machines: Iterable[Machine], snapshot: Snapshot, now: datetime, ahead: timedelta, *, may_change: bool
) -> Iterable[ProblemView]:
    """Node keys of the head and of machines that end within `ahead`: the device is off the tailnet then."""
    if not isinstance(snapshot.tailnet, Fresh):
        return
    joined = {m.name: m for m in machines if m.phase in IN_SLURM}
    for key in expiring_keys(joined.values(), snapshot.tailnet.value):
        if not key.expired and key.expires - ahead > now:
            continue
        if key.expired or key.expires <= now:
            text = f"the node key of {key.owner} {ending(min(key.expires, now), now)}: it is off the tailnet"
        else:
            text = f"the node key of {key.owner} {ending(key.expires, now)}: then it is off"
        cure = (
            "disable key expiry for it in the admin console, or give meshd an API credential, which does it by itself"
        )
        if not key.machine:
            cure = "disable key expiry for the head in the admin console, or `tailscale up --force-reauth` on it"
        elif may_change:
            cure = (
                "meshd asks the API to disable its expiry each hour; `meshctl events` tells why that fails: the "
                "credential needs devices:core"
            )
        machine = joined.get(MachineName(key.machine))
        urgent = key.expired or key.expires - KEY_URGENT <= now
        yield _problem(
            "error" if urgent else "warning", text, cure, machine=key.machine, pool=machine.pool if machine else ""
        )


def of_plan(
    desired: Desired, machines: Iterable[Machine], warnings: Iterable[Warn], snapshot: Snapshot
) -> Iterable[ProblemView]:
    """What keeps a pool from its target. It is blocking when no time will mend it and nothing is on its way."""
    machines = list(machines)
    offers_known = any(isinstance(listing, Fresh) for listing in snapshot.offers.values())
    for warn in warnings:
        if not warn.holds_back:
            continue
        pool = desired.pools.get(warn.subject)
        coming = [m for m in machines if pool and m.pool == pool.name and m.phase is not Phase.READY and not m.removal]
        yield _problem(
            "error" if pool else "warning",
            warn.reason if pool else f"{warn.subject}: {warn.reason}",
            warn.cure or _cure_of(warn.reason),
            pool=warn.subject if pool else "",
            blocking=bool(pool) and offers_known and not coming,
        )
    for pool in desired.pools.values():
        cooldown = desired.cooldowns.get(f"pool:{pool.name}")
        target = desired.target(pool)
        short = target is not None and supply_gpus([m for m in machines if m.pool == pool.name]) < target.gpus
        if cooldown is not None and not short:
            yield _problem("warning", cooldown.reason, "see `meshctl events`", pool=pool.name)


def _cure_of(reason: str) -> str:
    """What would let a pool have its machines, by what holds it back. Waiting does not raise a quota."""
    if cause_of_words(reason) is FailureCause.QUOTA:
        return "ask the provider for a higher quota, or allow another provider or region"
    return "allow another provider, region or price, or wait: meshd tries again"


def of_prices(desired: Desired, machines: Iterable[Machine]) -> Iterable[ProblemView]:
    """Pools whose limit in USD was held against old prices."""
    for pool, stale in rented_by_stale(machines, desired).items():
        for (provider, date), names in sorted(stale.items()):
            some = "1 machine was" if len(names) == 1 else f"{len(names)} machines were"
            text = f"{some} rented within the limit by prices of {provider} of {date}: the bill may be higher"
            yield _problem("warning", text, refresh_words(provider), pool=pool)


_JOURNAL_CURES = {
    "targets": "set the target of {key} again with `meshctl scale --pool {key} --gpus N`",
    "blocks": "nothing: what was left alone for a while is tried again",
    "auth_rotations": "`meshctl rotate-key` begins another rotation",
    "auth_rotation_nodes": "`meshctl rotate-key --status` shows how the rotation stands",
    "munge_rotations": "`meshctl rotate-key --munge` begins another rotation",
    "machine_keys": "an auth key with the description 'meshd {key}' may still be valid: look in the admin console",
}


def of_journal(unreadable: Iterable[Unreadable], machines: Iterable[Machine], targets: Collection[str],
               now: datetime) -> Iterable[ProblemView]:  # fmt: skip
    """Rows of the journal that could not be read; each is kept in its table `unreadable`."""
    why = {row.key: row.why for row in unreadable if row.table == "machines"}
    for machine in machines:
        if UNREADABLE not in machine.marks:
            continue
        price = f"{machine.usd_per_hour:.2f} USD/h" if machine.usd_per_hour else "a price that is not known"
        what = why.get(machine.name, "damaged")
        yield _problem(
            "error" if machine.held else "warning",
            f"the record of {machine.name} in the journal could be read only in part ({what}): meshd leaves it as it "
            f"is; it costs {price}",
            f"`meshctl remove {machine.name}` gives it back after its jobs, and another takes its place",
            since=machine.marks[UNREADABLE], pool=machine.pool, machine=machine.name,
        )  # fmt: skip
    for row in unreadable:
        if row.table in _JOURNAL_CURES and not (row.table == "targets" and row.key in targets):
            text = f"a row of {row.table} in the journal could not be read and is left out ({row.key}): {row.why}"
            yield _problem("warning", text, _JOURNAL_CURES[row.table].format(key=row.key), since=row.at)


def of_price_files(damaged: Mapping[str, str]) -> Iterable[ProblemView]:
    """Files of fetched prices that cannot be read: older ones hold."""
    for provider, why in sorted(damaged.items()):
        text = f"{why}; {provider} is reckoned with older prices"
        yield _problem("warning", text, f"`meshctl prices refresh {provider}` writes it anew")


def ordered(problems: Iterable[ProblemView]) -> list[ProblemView]:
    """Worst first."""
    return sorted(problems, key=lambda p: (_ORDER.get(p.severity, 9), p.pool, p.text))


def of_text(text: str, cure: str, severity: str = "error") -> Iterable[ProblemView]:
    """A problem that somebody else worded; nothing for an empty text."""
    if text:
        yield _problem(severity, text, cure)


def _problem(severity: str, text: str, cure: str, *, since: datetime | None = None, pool: str = "", machine: str = "",
             blocking: bool = False) -> ProblemView:  # fmt: skip
    return ProblemView(
        severity=severity, text=text, cure=cure, since=since, pool=pool, machine=machine, blocking=blocking
    )
