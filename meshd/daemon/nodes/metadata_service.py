"""Nodes whose users can reach the cloud's metadata service, as their agents tell."""

from __future__ import annotations

from collections.abc import Iterable

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.reporting import ok, problem, warn
from meshd.model.machine import IN_SLURM, Machine
from meshd.plaintext import counted

CURE = (
    "have nftables or iptables in the image, or run `apt-get install nftables` on the node: its agent closes it within "
    "a minute"
)
NAME = CheckName.METADATA_SERVICE


def problems(machines: Iterable[Machine]) -> list[ProblemView]:
    """One for each node in Slurm: its users can read its user data, and with it an auth key of the tailnet."""
    return [
        problem(
            ProblemCode.METADATA_OPEN, "warning",
            f"users of {one.slot} can read its user data at the metadata service: {one.metadata_open}",
            CURE, machine=one.name, pool=one.pool,
        )
        for one in _open(machines)
    ]  # fmt: skip


def check(machines: Iterable[Machine]) -> CheckRow:
    """The row of `meshctl doctor`."""
    found = _open(machines)
    if not found:
        return ok(NAME, "closed to users on all nodes")
    slots = ", ".join(sorted(one.slot for one in found)[:5])
    text = f"open to users on {counted(len(found), 'node')}: {slots}: {found[0].metadata_open}"
    return warn(NAME, ProblemCode.METADATA_OPEN, text, CURE)


def _open(machines: Iterable[Machine]) -> list[Machine]:
    return [one for one in machines if one.metadata_open and one.phase in IN_SLURM]
