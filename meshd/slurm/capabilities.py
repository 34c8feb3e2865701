"""PURE: what each Slurm version can do, in one table. No other module compares Slurm versions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshd.errors import SlurmError


@dataclass(frozen=True, slots=True, order=True)
class SlurmVersion:
    """A Slurm version: 24.11.5 is release (24, 11), patch 5."""

    release: tuple[int, int]
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.release[0]}.{self.release[1]:02d}.{self.patch}"


@dataclass(frozen=True, slots=True)
class SlurmCapabilities:
    """What a slurmctld of this release allows.

    Attributes:
        release: the row of the table that applies: the release itself, or the newest known below it.
        reconfigure_may_change_node_set: nodes may be added to and removed from the files by `scontrol reconfigure`.
            Before 23.11 slurmctld ends with fatal() ("MaxNodeCount has changed", "hostnames inconsistency detected").
        may_change_shapes: CPUs, memory and Gres of a slot's line may change by reconfigure.
        has_instances: a node has an InstanceId and an InstanceType.
    """

    release: tuple[int, int]
    reconfigure_may_change_node_set: bool
    may_change_shapes: bool
    has_instances: bool

    @property
    def restart_when_node_set_changes(self) -> bool:
        """Whether a changed node set needs a graceful restart of slurmctld."""
        return not self.reconfigure_may_change_node_set


TABLE: tuple[SlurmCapabilities, ...] = (
    SlurmCapabilities((22, 5), False, False, False),
    SlurmCapabilities((23, 2), False, False, False),
    SlurmCapabilities((23, 11), True, True, True),
    SlurmCapabilities((24, 5), True, True, True),
    SlurmCapabilities((24, 11), True, True, True),
    SlurmCapabilities((25, 5), True, True, True),
)
"""Measured on 22.05.8 and 24.11.5. By Slurm's source 23.02 is like 22.05, and 23.11 and 24.05 are like 24.11
(src/slurmctld/read_config.c, controller.c), and 23.11 is the first with --instance-id (its release notes)."""

_VERSION = re.compile(r"(?:^|\s)(?:slurm(?:-\S+?)?[ -])?(\d{2})\.(\d{2})(?:\.(\d+))?(?![\d.])", re.IGNORECASE)


def parse_version(text: str) -> SlurmVersion:
    """Parse a version, bare ("24.11.5") or from `scontrol -V` ("slurm-wlm 22.05.8").

    Raises:
        SlurmError: the text has no version.
    """
    match = _VERSION.search(text.strip())
    if not match:
        raise SlurmError(f"{text.strip()[:100]!r} is not a Slurm version")
    return SlurmVersion((int(match[1]), int(match[2])), int(match[3] or 0))


def capabilities(version: SlurmVersion) -> SlurmCapabilities:
    """The row for this slurmctld. A release newer than the table gets the newest row.

    Raises:
        SlurmError: the release is older than the table.
    """
    rows = [row for row in TABLE if row.release <= version.release]
    if not rows:
        oldest = SlurmVersion(TABLE[0].release)
        raise SlurmError(
            f"slurmctld {version} is too old: meshd works with {oldest.release[0]}.{oldest.release[1]:02d} and newer"
        )
    return rows[-1]
