"""PURE: what `scontrol show config` says of Slurm's power saving. Measured on 22.05.8 and 24.11.5."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshd.model.observed import SlurmNode
from meshd.slurm.show import filled, hostlist, items

RESUME_PROGRAM = "/usr/lib/meshd/slurm-resume"
SUSPEND_PROGRAM = "/usr/lib/meshd/slurm-suspend"
"""meshd's programs for Slurm's power saving: `meshctl init` puts them into slurm.conf."""

_NEVER = frozenset({"", "-1", "(null)", "NONE", "INFINITE"})
_DOWN_OR_GOING = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})


@dataclass(frozen=True, slots=True)
class PowerSaving:
    """Slurm's power saving, as `scontrol show config` shows it.

    Attributes:
        on: it is in force, with meshd's programs.
        resume_timeout_s, suspend_timeout_s: Slurm's deadlines for a node that powers up, and for one that powers down.
        exc_nodes: SuspendExcNodes: each host list, with how many of its nodes stay up; None: all.
        exc_parts, exc_states: SuspendExcParts and SuspendExcStates.
    """

    on: bool = False
    resume_timeout_s: int = 60
    suspend_timeout_s: int = 30
    exc_nodes: tuple[tuple[tuple[str, ...], int | None], ...] = ()
    exc_parts: frozenset[str] = frozenset()
    exc_states: frozenset[str] = frozenset()

    def stays(self, nodes: Mapping[str, SlurmNode]) -> frozenset[str]:
        """The nodes that power saving has to leave up.

        Of a list with a number, that number of nodes stays: the first of those that are up, as Slurm counts them.
        """
        found = {
            name
            for name, node in nodes.items()
            if self.exc_states & node.states or not self.exc_parts.isdisjoint(node.partitions)
        }
        for names, count in self.exc_nodes:
            up = [name for name in names if name in nodes and not _DOWN_OR_GOING & nodes[name].states]
            found.update(names if count is None else up[:count])
        return frozenset(found)


def power_saving(text: str) -> PowerSaving:
    """What `scontrol show config` says of power saving.

    Raises:
        SlurmError: SuspendExcNodes is no host list.
    """
    value = {key: filled(found) for key, found in re.findall(r"^((?:Suspend|Resume)\w+)\s*=\s*(.*?)\s*$", text, re.M)}
    programs = value.get("ResumeProgram"), value.get("SuspendProgram")
    never = value.get("SuspendTime", "").split(" ")[0].upper() in _NEVER
    return PowerSaving(
        on=programs == (RESUME_PROGRAM, SUSPEND_PROGRAM) and not never,
        resume_timeout_s=_leading(value.get("ResumeTimeout", ""), 60),
        suspend_timeout_s=_leading(value.get("SuspendTimeout", ""), 30),
        exc_nodes=tuple(_excluded(item) for item in _outside_brackets(value.get("SuspendExcNodes", ""))),
        exc_parts=frozenset(items(value.get("SuspendExcParts", ""))),
        exc_states=frozenset(items(value.get("SuspendExcStates", "").upper())),
    )


def _leading(text: str, default: int) -> int:
    """The number that a text like "120 sec" begins with."""
    word = text.split(" ")[0]
    return int(word) if word.isdigit() else default


def _outside_brackets(text: str) -> tuple[str, ...]:
    """The items between commas, except for commas within brackets."""
    return tuple(item for item in re.split(r",(?![^\[]*\])", text) if item)


def _excluded(item: str) -> tuple[tuple[str, ...], int | None]:
    names, _, count = item.partition(":")
    return hostlist(names), int(count) if count.isdigit() else None
