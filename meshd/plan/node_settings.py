"""PURE: which settings a node is given beside munge and Slurm, in sections, and what follows from its reports.

To add a section: a field in `ClusterGiven` for what it is made from, a function in `SECTIONS` that makes its value, and
a module of the node agent that applies it (`deploy/node/meshd_node/sections.py`). To add a fault of a READY node: its
code in `FAULTS`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from meshd.model.machine import Machine, UnfitReason
from meshd.model.node_settings import NodeFault, ReportedSection, SectionState, WantedSection
from meshd.model.observed import AgentReport
from meshd.plan.accounts import Accounts, document
from meshd.plan.plugstack import NO_PYXIS, PyxisLine
from meshd.plan.provider_capabilities import is_pod
from meshd.plan.shares import Share, section_value

INTERFACE: Final = "tailscale0"
"""The tailnet's network interface on every node; libmeshnet shows it on pods without a TUN device."""

BUILT_IN_ENV: Final = {
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "NCCL_SOCKET_IFNAME": INTERFACE,
    "OMPI_MCA_btl_tcp_if_include": INTERFACE,
}
"""Programs that choose a network interface themselves take the machine's private one, where other nodes are not."""

MLFLOW_URI: Final = "MLFLOW_TRACKING_URI"
"""The variable from which MLflow's clients take the address of the server."""

INSTALL_S: Final = 300.0
"""For a package that the image lacks."""

PACKAGES_WITHIN_S: Final = 600.0
"""The agent tries for 480 s (packages.TOTAL_S)."""

FAULTS: Final[Mapping[str, UnfitReason]] = {
    "share_lost": UnfitReason.SHARE_LOST,
    "account_clash": UnfitReason.ACCOUNT_CLASH,
}
"""Faults that keep jobs off a READY node, by their code. A code that is not here is only shown."""


@dataclass(frozen=True, slots=True)
class PoolGiven:
    """What a pool's settings give its nodes.

    Attributes:
        env: variables of every job, beside the built-in ones.
        packages: apt's names.
        setup: the script that runs once on each new machine; "" for none.
        setup_fault: why the script cannot be read; "" when it can.
        setup_timeout_s: for all tries of the script together.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    setup: str = ""
    setup_fault: str = ""
    setup_timeout_s: float = 900.0


@dataclass(frozen=True, slots=True)
class ClusterGiven:
    """All that sections are made from.

    Attributes:
        pools: by name.
        env: variables of every job in every pool, beside the built-in ones; a pool's own hold against them.
        shares: what nodes mount.
        accounts: the head's users; None while they are not known: nodes keep those that they have.
        move_image_accounts: an account of an image that is in a user's way gets another number.
        ssh_key: the public half of root's key on the head, type and key; "" for none.
        head: the head's address on the tailnet; "" while it is not known.
        pyxis: the line by which the head requires pyxis.
    """

    pools: Mapping[str, PoolGiven]
    env: Mapping[str, str] = field(default_factory=dict)
    shares: Sequence[Share] = ()
    accounts: Accounts | None = None
    move_image_accounts: bool = True
    ssh_key: str = ""
    head: str = ""
    pyxis: PyxisLine = NO_PYXIS


@dataclass(frozen=True, slots=True)
class NodeKind:
    """All of a machine that its sections depend on: machines of one kind are given the same."""

    pool: str
    pod: bool

    @staticmethod
    def of(machine: Machine, pod_providers: Mapping[str, str]) -> NodeKind:
        """The kind of this machine; `pod_providers` are those that rent pods."""
        return NodeKind(machine.pool, is_pod(machine, pod_providers))


@dataclass(frozen=True, slots=True)
class Section:
    """One section for one kind of node; `value` is JSON."""

    name: str
    value: Mapping[str, Any]
    wanted: WantedSection


def digest(value: Mapping[str, Any]) -> str:
    """The digest of a section's value: 16 hexadecimal digits. The order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


Made = tuple[Mapping[str, Any], bool, float]
"""A section's value, and `once` and `within_s` of its WantedSection."""


def _accounts(given: ClusterGiven, kind: NodeKind) -> Made | None:
    """The head's users. Homes on a share are not the node's to make or to give away."""
    if given.accounts is None:
        return None
    value = document(given.accounts)
    move = "move" if given.move_image_accounts else "keep"
    shares = [] if kind.pod else sorted(share.path for share in given.shares)
    return {**value, "image_accounts": move, "shares": shares}, False, 0.0


def _shares(given: ClusterGiven, kind: NodeKind) -> Made | None:
    """The directories that the node mounts. A pod may not mount."""
    return None if kind.pod else (section_value(given.shares), False, INSTALL_S if given.shares else 0.0)


def _packages(given: ClusterGiven, kind: NodeKind) -> Made:
    """What apt installs. On a running node too, when the list grows; nothing is ever removed."""
    names = given.pools.get(kind.pool, PoolGiven()).packages
    return {"names": list(names)}, False, PACKAGES_WITHIN_S if names else 0.0


def _setup(given: ClusterGiven, kind: NodeKind) -> Made:
    """The script that runs once."""
    pool = given.pools.get(kind.pool, PoolGiven())
    value = {"script": pool.setup, "timeout_s": pool.setup_timeout_s, "pool": kind.pool}
    return value, True, pool.setup_timeout_s if pool.setup else 0.0


def _containers(given: ClusterGiven, kind: NodeKind) -> Made | None:
    """pyxis, where the head requires it; packages or the set-up script may bring it. A pod may make no containers."""
    if kind.pod:
        return None
    pool = given.pools.get(kind.pool, PoolGiven())
    within_s = (PACKAGES_WITHIN_S if pool.packages else 0.0) + (pool.setup_timeout_s if pool.setup else 0.0)
    return {"line": given.pyxis.line, "shipped": given.pyxis.shipped}, False, within_s


def _job_env(given: ClusterGiven, kind: NodeKind) -> Made:
    """The variables of every job on the node."""
    pool = given.pools.get(kind.pool, PoolGiven())
    return {"env": {**BUILT_IN_ENV, **given.env, **pool.env}}, False, 0.0


def _ssh_key(given: ClusterGiven, _kind: NodeKind) -> Made:
    """Root on the head may come in as root."""
    there = bool(given.ssh_key and given.head)
    return {"key": given.ssh_key if there else "", "from": given.head if there else ""}, False, 0.0


SECTIONS: Final[Mapping[str, Callable[[ClusterGiven, NodeKind], Made | None]]] = {
    "accounts": _accounts,
    "shares": _shares,
    "packages": _packages,
    "setup": _setup,
    "containers": _containers,
    "job_env": _job_env,
    "ssh_key": _ssh_key,
}
"""By name, in their order: what makes a section. None: nodes of this kind do not have it. A section that has nothing to
do is sent empty, so that a node which had more gives it up."""


def sections(given: ClusterGiven, kind: NodeKind) -> Mapping[str, Section]:
    """The sections of a kind of node, by name, in their order."""
    found: dict[str, Section] = {}
    for name, make in SECTIONS.items():
        made = make(given, kind)
        if made is not None:
            value, once, within_s = made
            fault = given.pools.get(kind.pool, PoolGiven()).setup_fault if name == "setup" else ""
            found[name] = Section(name, value, WantedSection(digest(value), once, within_s, fault))
    return found


def to_send(wanted: Mapping[str, WantedSection], reported: Mapping[str, ReportedSection]) -> tuple[str, ...]:
    """The names of the sections that the agent does not hold as they should be."""
    return tuple(name for name, one in wanted.items() if not one.fault and not _holds(one, reported.get(name)))


def _holds(wanted: WantedSection, reported: ReportedSection | None) -> bool:
    if reported is None or (wanted.fault and not wanted.once):
        return False
    return reported.digest == wanted.digest or (wanted.once and reported.state is SectionState.APPLIED)


def _applied(wanted: WantedSection, reported: ReportedSection | None) -> bool:
    return _holds(wanted, reported) and reported is not None and reported.state is SectionState.APPLIED


@dataclass(frozen=True, slots=True)
class Unapplied:
    """A section that keeps a machine from becoming a node.

    Attributes:
        words: what it does, or why it failed, for people.
        final: it failed for good.
    """

    name: str
    words: str
    final: bool = False


def unapplied(wanted: Mapping[str, WantedSection], report: AgentReport | None) -> Unapplied | None:
    """The section that a machine waits for before slurmd may start; None when it has all.

    Of several, one that failed for good comes first, then one that failed. A machine whose agent has not reported since
    meshd started waits; one whose agent is older than sections does not.
    """
    if not wanted:
        return None
    if report is None:
        return Unapplied(next(iter(wanted)), "its agent has not called since meshd started")
    if report.sections is None:
        return None
    missing = [_unapplied(name, one, report.sections.get(name)) for name, one in wanted.items()
               if not _applied(one, report.sections.get(name))]  # fmt: skip
    failed = {name for name, one in report.sections.items() if one.state is SectionState.FAILED}
    return min(missing, key=lambda one: (not one.final, one.name not in failed), default=None)


def _unapplied(name: str, wanted: WantedSection, reported: ReportedSection | None) -> Unapplied:
    if wanted.fault:
        return Unapplied(name, wanted.fault, final=True)
    if reported is None:
        return Unapplied(name, "it was not sent yet")
    if reported.state is SectionState.APPLIED:
        return Unapplied(name, "it has an older value")
    return Unapplied(name, reported.detail or reported.state.value, reported.final)


def unfit_faults(faults: tuple[NodeFault, ...]) -> tuple[tuple[UnfitReason, NodeFault], ...]:
    """The faults that keep jobs off the node, each with its reason."""
    return tuple((FAULTS[one.code], one) for one in faults if one.code in FAULTS)
