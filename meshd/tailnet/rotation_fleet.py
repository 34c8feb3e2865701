"""PURE: what is known of the machines that may hold an auth key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from meshd.model.host import PROVIDER
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import Fresh, Observation, SlurmView, TailnetView, value_of

MAY_HOLD_A_KEY = IN_SLURM | {Phase.LAUNCHING, Phase.BOOTING, Phase.JOINING}
REAUTH_MIN_VERSION = (1, 90)
"""An older tailscale drops the link when it logs in again."""


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A machine that may hold an auth key, as it is known now.

    Attributes:
        sha256: of the key that it was launched with, or that its agent reported last; "" when not known.
        reachable: its agent polls.
        jobs: those on it.
        node_key: its public key as the head's tailscaled sees it.
        online: the head's tailscaled sees it online.
        reauth_problem: why it cannot log in again; "" when it can.
        own_key: it was launched with a key of its own and keeps only a spare: it is sent a key when it logs in again.
        spare_at: when the spare that it holds was ordered; None when it holds none.
        born_at: when its create call was made; None when not known.
    """

    slot: str
    sha256: str = ""
    reachable: bool = False
    address: str = ""
    jobs: tuple[str, ...] = ()
    node_key: str = ""
    online: bool = False
    reauth_problem: str = ""
    own_key: bool = False
    spare_at: datetime | None = None
    born_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuthKeyFleet:
    """What is known now.

    Attributes:
        nodes: every machine that was launched and is not on its way out, by name.
        jobs_known: Slurm can be read. Without it the jobs of a node are not known.
        peers_known: the head's tailscaled can be read, and is connected.
        in_use: sha256 of the key that new machines get.
    """

    nodes: Mapping[str, SeenNode]
    jobs_known: bool = True
    peers_known: bool = True
    in_use: str = ""


def fleet_of(
    machines: Iterable[Machine],
    tailnet: Observation[TailnetView],
    slurm: Observation[SlurmView],
    *,
    in_use: str,
    now: datetime,
    silent_s: float,
    spare_at: Callable[[Machine], datetime | None],
) -> AuthKeyFleet:
    """The fleet as a rotation sees it now.

    Args:
        machines: all that are not GONE.
        tailnet: the head's view.
        slurm: nodes and jobs.
        in_use: sha256 of the key that new machines get.
        now: UTC.
        silent_s: a node whose agent has not polled for this long cannot be reached.
        spare_at: when the spare that a machine holds was ordered.
    """
    peers_known = isinstance(tailnet, Fresh) and tailnet.value.healthy
    view = value_of(slurm)
    nodes: dict[str, SeenNode] = {}
    for machine in machines:
        if machine.phase not in MAY_HOLD_A_KEY or (machine.provider == PROVIDER and not machine.own_key):
            continue  # its owner logged its device in
        peer = tailnet.value.peers.get(machine.tailnet_id) if isinstance(tailnet, Fresh) else None
        nodes[machine.name] = SeenNode(
            slot=machine.slot,
            sha256=machine.auth_key,
            reachable=reachable(machine, now, silent_s),
            address=(peer.tailnet_ip if peer else "") or machine.tailnet_ip,
            jobs=view.jobs_on(machine.slot) if view else (),
            node_key=peer.node_key if peer else "",
            online=bool(peer and peer.online),
            reauth_problem=_reauth_problem(machine),
            own_key=machine.own_key,
            spare_at=spare_at(machine) if machine.own_key else None,
            born_at=machine.launch_called_at,
        )
    return AuthKeyFleet(nodes, jobs_known=view is not None, peers_known=peers_known, in_use=in_use)


def device_tags(machines: Iterable[Machine], tailnet: Observation[TailnetView]) -> tuple[str, ...]:
    """The tags that the devices of all machines have; () when there is no device or they differ."""
    joined = {machine.tailnet_id for machine in machines if machine.tailnet_id}
    peers = tailnet.value.peers.values() if isinstance(tailnet, Fresh) else ()
    found = {peer.tags for peer in peers if peer.id in joined}
    return next(iter(found)) if len(found) == 1 else ()


def reachable(machine: Machine, now: datetime, silent_s: float) -> bool:
    """Its agent has joined, and polled within `silent_s`."""
    if machine.facts is None or machine.heartbeat_at is None or machine.phase not in IN_SLURM:
        return False
    return (now - machine.heartbeat_at).total_seconds() < silent_s


def _reauth_problem(machine: Machine) -> str:
    version = machine.facts.tailscale_version if machine.facts else ""
    words = version.split(".")[:2]
    known = tuple(int(word) for word in words if word.isdigit())
    if not version or known >= REAUTH_MIN_VERSION:
        return ""
    return f"tailscale {version} would drop the link: it can log in again from 1.90 on"
