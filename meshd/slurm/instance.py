"""PURE: tells slurmd which instance of a cloud it runs on: `scontrol show node` shows it."""

from __future__ import annotations

import re

from meshd.errors import SlurmError
from meshd.model.machine import Machine
from meshd.slurm.capabilities import capabilities, parse_version

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
"""The ids and types of clouds. slurmd's arguments have no other characters: a unit's environment carries them."""


def slurmd_args(machine: Machine, cloud: bool) -> list[str]:
    """The arguments of slurmd.

    slurmctld takes the registration of a CLOUD node that it powers up only when that has booted since it was asked for:
    `-b` makes slurmd say so.
    """
    return [*(["-b"] if cloud else []), *instance_args(machine)]


def instance_args(machine: Machine) -> list[str]:
    """The arguments of slurmd that name the machine's instance; none for a slurmd that does not have them."""
    try:
        known = machine.facts is not None and capabilities(parse_version(machine.facts.slurmd_version)).has_instances
    except SlurmError:
        return []
    words = {"--instance-id": machine.instance_id, "--instance-type": machine.offer.instance_type}
    return [text for name, word in words.items() if known and _WORD.fullmatch(word) for text in (name, word)]
