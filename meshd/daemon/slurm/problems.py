"""Lines of Slurm's files that are not as they should be. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem


def left_out(machines: Mapping[str, str]) -> Iterable[ProblemView]:
    """Machines whose line cannot stand in Slurm's files, each with why."""
    for machine, why in sorted(machines.items()):
        yield problem(
            ProblemCode.MACHINE_LEFT_OUT, "error", f"it is left out of Slurm's files: {why}",
            f"`meshctl remove {machine}` replaces it; if its pool's settings are at fault, mend meshd.toml",
            machine=machine,
        )  # fmt: skip


def kept_lines(slots: Mapping[str, str]) -> Iterable[ProblemView]:
    """Slots that keep their present line for now, each with why."""
    for slot, why in sorted(slots.items()):
        cure = f"see `squeue -w {slot}`; meshd makes all other changes meanwhile"
        yield problem(ProblemCode.SLOT_LINE_KEPT, "warning", why, cure)
