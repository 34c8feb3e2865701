"""What is wrong with nodes: silent logins, deleted devices, node keys that end, an open metadata service. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.reporting import ok, problem, warn
from meshd.model.ids import MachineName
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import Fresh, Snapshot, value_of
from meshd.plaintext import counted, ending
from meshd.plan.devices import expiring_keys, same_machine_id
from meshd.plan.provider_capabilities import lacking

OFFLINE_LONG: Final = timedelta(minutes=10)
"""A restart of tailscaled or of the machine takes less, and its agent mends what it can in less."""

DEVICE_BACK: Final = timedelta(minutes=3)
"""A machine whose device was deleted is back within this when its auth key is good."""

KEY_URGENT: Final = timedelta(days=3)
"""An end of a node key that is this near is an error."""


def logins(machines: Iterable[Machine], snapshot: Snapshot, now: datetime) -> Iterable[ProblemView]:
    """READY nodes that control has not seen for long. Their data plane may work, and a job may run: none is ended."""
    tailnet = snapshot.tailnet
    if not isinstance(tailnet, Fresh) or not tailnet.value.healthy:
        return
    slurm = value_of(snapshot.slurm)
    for machine in machines:
        peer = tailnet.value.peers.get(machine.tailnet_id)
        if machine.phase is not Phase.READY or machine.problem or peer is None or peer.online or not peer.last_seen:
            continue
        if machine.heartbeat_at is None or machine.heartbeat_at <= peer.last_seen:
            continue  # its agent is silent as well: that has a problem of its own
        if now - peer.last_seen < OFFLINE_LONG:
            continue
        node = slurm.nodes.get(machine.slot) if slurm else None
        up = node is not None and node.up
        answers = "its slurmd answers, so meshd keeps it" if up else "meshd keeps it while jobs may run"
        minutes = (now - peer.last_seen).total_seconds() / 60
        text = f"{machine.name} is not connected to the tailnet's control server for {minutes:.0f} min; {answers}"
        yield problem(
            ProblemCode.CONTROL_OFFLINE, "warning", text,
            "its agent repairs a refused login by itself; otherwise `systemctl restart tailscaled` there",
            since=peer.last_seen, machine=machine.name, pool=machine.pool,
        )  # fmt: skip


def devices(machines: Iterable[Machine], now: datetime) -> Iterable[ProblemView]:
    """Devices that were deleted while their machines run, and machines that share what only one may have."""
    machines = [machine for machine in machines if machine.phase in IN_SLURM]
    for machine in machines:
        since = machine.device_gone_since
        if since is None:
            continue
        text = f"the tailnet device of {machine.name} was deleted while it runs: neither meshd nor Slurm reaches it"
        keyless = machine.own_key and not machine.spare_key
        cure = "nothing: its agent logs in again with the auth key that it keeps, mostly within a minute"
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
        yield problem(
            ProblemCode.DEVICE_DELETED,
            "error" if late or keyless else "warning",
            text,
            cure,
            since=since,
            machine=machine.name,
            pool=machine.pool,
        )
    for names in same_machine_id(machines):
        yield problem(
            ProblemCode.MACHINE_ID_SHARED,
            "warning",
            f"{', '.join(names)} have one machine id: their image holds /etc/machine-id of another machine",
            "make the image again with an empty /etc/machine-id: logs, DHCP leases and tailscale mix such machines up",
            machine=names[0],
        )


def node_keys(
    machines: Iterable[Machine], snapshot: Snapshot, now: datetime, ahead: timedelta, *, may_change: bool
) -> Iterable[ProblemView]:
    """Node keys of the head and of machines that end within `ahead`: the device is off the tailnet then.

    Args:
        machines: those that are not GONE.
        snapshot: the newest one.
        now: UTC.
        ahead: how long before its end a key is a problem.
        may_change: meshd has an API credential, with which it disables the expiry of machines' keys.
    """
    if not isinstance(snapshot.tailnet, Fresh):
        return
    joined = {m.name: m for m in machines if m.phase in IN_SLURM}
    for key in expiring_keys(joined.values(), snapshot.tailnet.value):
        if not key.expired and key.expires - ahead > now:
            continue
        over = key.expired or key.expires <= now
        if over:
            text = f"the node key of {key.owner} {ending(min(key.expires, now), now)}: it is off the tailnet"
        else:
            text = f"the node key of {key.owner} {ending(key.expires, now)}: then it is off the tailnet"
        if not key.machine:
            cure = "disable key expiry for the head in the admin console, or `tailscale up --force-reauth` on it"
        elif may_change:
            cure = (
                "nothing while it works: meshd asks the API each hour to disable the expiry; `meshctl events` tells "
                "why that fails: the credential needs devices:core"
            )
        else:
            cure = "disable key expiry for it in the admin console, or give meshd an API credential to do it by itself"
        machine = joined.get(MachineName(key.machine))
        yield problem(
            ProblemCode.NODE_KEY_EXPIRED if over else ProblemCode.NODE_KEY_EXPIRES,
            "error" if over or key.expires - KEY_URGENT <= now else "warning",
            text,
            cure,
            machine=key.machine,
            pool=machine.pool if machine else "",
        )


CURE = (
    "have nftables or iptables in the image, or run `apt-get install nftables` on the node: its agent closes it within "
    "a minute"
)
CURE_WITHOUT_RULES = (
    "its container has no CAP_NET_ADMIN, so no program on it can close the service: have the provider close it, or "
    'rent no such machines: pods = "never" for the pool'
)
NAME = CheckName.METADATA_SERVICE


def metadata_open(machines: Iterable[Machine]) -> list[ProblemView]:
    """One for each node in Slurm: its users can read its user data, and with it an auth key of the tailnet."""
    return [
        problem(
            ProblemCode.METADATA_OPEN, "warning",
            f"users of {one.slot} can read its user data at the metadata service: {one.metadata_open}",
            _metadata_cure(one), machine=one.name, pool=one.pool,
        )
        for one in _open(machines)
    ]  # fmt: skip


def check_metadata_service(machines: Iterable[Machine]) -> CheckRow:
    """The row of `meshctl doctor`."""
    found = _open(machines)
    if not found:
        return ok(NAME, "closed to users on all nodes")
    slots = ", ".join(sorted(one.slot for one in found)[:5])
    text = f"open to users on {counted(len(found), 'node')}: {slots}: {found[0].metadata_open}"
    return warn(NAME, ProblemCode.METADATA_OPEN, text, "; ".join(dict.fromkeys(map(_metadata_cure, found))))


LIMITS_CURE = (
    'docs/slurm.md says what each means; where jobs must not see each other, set pods = "never" for the pool, or have '
    "jobs take whole nodes (OverSubscribe=EXCLUSIVE)"
)


def check_limits(machines: Iterable[Machine]) -> CheckRow:
    """The row of `meshctl doctor` about nodes whose kernel does not allow what Slurm's settings ask for."""
    found = [one for one in machines if one.lacks and one.phase in IN_SLURM]
    if not found:
        return ok(CheckName.NODE_LIMITS, "all nodes have what Slurm's settings ask for")
    slots = ", ".join(sorted(one.slot for one in found)[:5])
    lacks = lacking(sorted({code for one in found for code in one.lacks}))
    text = f"jobs on {counted(len(found), 'node')} ({slots}) lack: {lacks}"
    return warn(CheckName.NODE_LIMITS, ProblemCode.NODE_WITHOUT_LIMITS, text, LIMITS_CURE)


def _metadata_cure(machine: Machine) -> str:
    may_not = machine.facts is not None and machine.facts.firewall is False
    return CURE_WITHOUT_RULES if may_not else CURE


def _open(machines: Iterable[Machine]) -> list[Machine]:
    return [one for one in machines if one.metadata_open and one.phase in IN_SLURM]
