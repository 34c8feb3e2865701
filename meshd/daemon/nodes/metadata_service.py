"""Nodes whose users can reach the cloud's metadata service, as their agents tell."""

from __future__ import annotations

from collections.abc import Iterable

from meshd.api.schema import CheckRow, ProblemView
from meshd.daemon.head_api.check_rows import ok, warn
from meshd.model.machine import IN_SLURM, Machine

CURE = (
    "have nftables or iptables in the image, or run `apt-get install nftables` on the node: its agent closes it within "
    "a minute"
)
NAME = "metadata service"


def problems(machines: Iterable[Machine]) -> list[ProblemView]:
    """One for each node in Slurm: its users can read its user data, and with it an auth key of the tailnet."""
    return [
        ProblemView(
            severity="warning", machine=one.name, pool=one.pool, cure=CURE,
            text=f"users of {one.slot} can read its user data at the metadata service: {one.metadata_open}",
        )
        for one in _open(machines)
    ]  # fmt: skip


def check(machines: Iterable[Machine]) -> CheckRow:
    """The row of `meshctl doctor`."""
    found = _open(machines)
    if not found:
        return ok(NAME, "closed to users on all nodes")
    slots = ", ".join(sorted(one.slot for one in found)[:5])
    return warn(NAME, f"open to users on {len(found)} nodes: {slots}: {found[0].metadata_open}", CURE)


def _open(machines: Iterable[Machine]) -> list[Machine]:
    return [one for one in machines if one.metadata_open and one.phase in IN_SLURM]
