"""Finds the machines' lines that Slurm refuses, so that meshd leaves only those out.

Slurm refuses a content as a whole, and seldom names the line. A binary search over the changed lines finds each one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from meshd.runtime.clock import Clock
from meshd.slurm.node_lines import Lines
from meshd.slurm.nodes import Rendered, without
from meshd.slurm.read_back import read_lines

REFUSALS_MAX = 20
"""The most refusals in one search. Lines that it has not tried by then are left out too."""

AGAIN_AFTER_S = 120.0
"""After this time refused lines may be tried again: slurmctld may have been at fault."""


class RefusedLines:
    """The lines that Slurm refused. A line that has not changed is not tried again for AGAIN_AFTER_S."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s = 0.0
        self.reasons: Mapping[str, str] = {}
        """By slot, why Slurm refused its machine's line."""
        self._lines: Mapping[str, Lines] = {}

    def left_out(self, wanted: Rendered, before: Mapping[str, Lines]) -> Rendered:
        """The content without refused lines. Forgets those that have changed since."""
        if not self._lines or wanted.source is None:
            return wanted
        if self._clock.monotonic_s() > self._until_s:
            self._lines, self.reasons = {}, {}
            return wanted
        now = read_lines(wanted.nodes_conf, wanted.gres_conf)
        self._lines = {slot: own for slot, own in self._lines.items() if now.get(slot) == own}
        self.reasons = {slot: why for slot, why in self.reasons.items() if slot in self._lines}
        return without(wanted, before, self._lines.keys()) if self._lines else wanted

    async def search(
        self, wanted: Rendered, before: Mapping[str, Lines], takes: Callable[[Rendered], Awaitable[str]]
    ) -> bool:
        """Apply the part of a refused content that Slurm accepts.

        Args:
            wanted: the refused content.
            before: the lines that are in force.
            takes: applies a content; returns "" when Slurm accepted it, or why not: then all is as before.

        Returns:
            Whether the changed lines were at fault; False when Slurm refuses the content without all of them too.
        """
        lines = read_lines(wanted.nodes_conf, wanted.gres_conf)
        changed = sorted(slot for slot, own in lines.items() if before.get(slot) != own)
        if wanted.source is None or not changed:
            return False
        if await takes(without(wanted, before, changed)):
            return False
        good: list[str] = []
        found: dict[str, str] = {}
        groups, refusals = [changed], 0
        while groups:
            group = groups.pop()
            if refusals >= REFUSALS_MAX:
                found |= dict.fromkeys(group, "not tried: Slurm refused too many lines before it")
                continue
            why = await takes(without(wanted, before, set(changed) - set(good) - set(group)))
            if not why:
                good += group
            elif len(group) == 1:
                found[group[0]] = why
            else:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
            refusals += bool(why)
        self._lines = {**self._lines, **{slot: lines[slot] for slot in found}}
        self.reasons = {**self.reasons, **found}
        self._until_s = self._clock.monotonic_s() + AGAIN_AFTER_S
        return True
