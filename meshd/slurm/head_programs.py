"""PURE: the programs that slurmctld runs on the head, and the settings of Slurm that go with them.

Slurm says by node states which slots it wants powered up; ResumeProgram and SuspendProgram only have meshd look at
once. Slurm itself never powers a node down: SuspendTime is longer than any node has been idle. So nothing changes for
nodes that have nothing to do with it: the site's own, and slots that only `meshctl scale` fills.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from meshd.slurm.power_saving import RESUME_PROGRAM as RESUME
from meshd.slurm.power_saving import SUSPEND_PROGRAM as SUSPEND

RESUME_PROGRAM = PurePosixPath(RESUME)
SUSPEND_PROGRAM = PurePosixPath(SUSPEND)
PROLOG_SLURMCTLD = RESUME_PROGRAM.with_name("prolog-slurmctld")
PROGRAMS = (RESUME_PROGRAM, SUSPEND_PROGRAM, PROLOG_SLURMCTLD)
"""slurmctld runs them as SlurmUser. root owns them: Slurm refuses a program that others can write."""

SUSPEND_TIME_S = 2_000_000_000
"""63 years. Slurm reads a C int; with -1 or INFINITE there is no power saving at all (22.05 to 24.11)."""

RESUME_TIMEOUT_S = 3600
"""When Slurm gives a node up that it powered up, and puts its job back into the queue. meshd gives up much earlier."""

SUSPEND_TIMEOUT_S = 10
"""How long a slot that was powered down cannot be powered up again."""

IDLE_ON_SUSPEND = "idle_on_node_suspend"

_SETTING = re.compile(r"^(Prolog\w+)(?:\[\d+\])?\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_NO_TIMEOUT = (0, 0xFFFE, 0xFFFF)


def starts_at_once(shown: str) -> bool:
    """Whether slurmctld has meshd's PrologSlurmctld, by `scontrol show config`."""
    return ("PrologSlurmctld", str(PROLOG_SLURMCTLD)) in _SETTING.findall(shown)


def prolog_timeout_s(shown: str) -> float | None:
    """After how long slurmctld ends a PrologSlurmctld, by `scontrol show config`; None: never."""
    word = dict(_SETTING.findall(shown)).get("PrologEpilogTimeout", "").removesuffix(" sec").strip()
    return float(word) if word.isdigit() and int(word) not in _NO_TIMEOUT else None
