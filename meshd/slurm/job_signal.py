"""PURE: the signal that a batch job asks for before its end, in its script (sbatch(1), --signal)."""

from __future__ import annotations

import re
import shlex
import signal
from dataclasses import dataclass

SCRIPT_MAX = 1 << 20
LINES_MAX = 1000
_VALUE = re.compile(r"(?:(?P<options>[RB]{1,2}):)?(?P<signal>[A-Za-z0-9+]{1,12})(?:@[0-9]{1,5})?")
_NUMBER_MAX = 64


@dataclass(frozen=True, slots=True)
class JobSignal:
    """A signal, e.g. "USR1" or "10"; `batch_only`: for the batch shell alone, not for the job's steps."""

    name: str
    batch_only: bool = False


def signal_in(script: str) -> JobSignal | None:
    """What the script asks for; None for nothing, or nothing that is known. sbatch reads up to the first command."""
    found = None
    for line in script[:SCRIPT_MAX].splitlines()[:LINES_MAX]:
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            found = _in_words(line.removeprefix("#SBATCH")) or found
    return found


def _in_words(text: str) -> JobSignal | None:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return None
    found = None
    for index, word in enumerate(words):
        if word.startswith("--signal="):
            found = word.removeprefix("--signal=")
        elif word == "--signal" and index + 1 < len(words):
            found = words[index + 1]
    match = _VALUE.fullmatch(found) if found else None
    name = match["signal"].upper().removeprefix("SIG") if match else ""
    if match is None or not _is_signal(name):
        return None
    return JobSignal(name, "B" in (match["options"] or ""))


def _is_signal(name: str) -> bool:
    if name.isdecimal():
        return 1 <= int(name) <= _NUMBER_MAX
    return f"SIG{name}" in signal.Signals.__members__
