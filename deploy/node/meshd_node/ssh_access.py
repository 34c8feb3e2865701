"""Where pam_slurm_adopt is installed, users of the cluster get in by ssh only while they have a job on this machine.

Only the accounts that the head gave are restricted. root, and accounts of the image, never are: whoever looks after the
machine gets in, whatever becomes of Slurm.
"""

from __future__ import annotations

import re
from pathlib import Path

from .files import replace_keeping
from .paths import Paths

BEGIN, END = "# meshd begin: users of the cluster need a job on this machine", "# meshd end"
MODULE = "pam_slurm_adopt.so"
DIRECTORIES = ("lib/*-linux-gnu/security", "usr/lib/*-linux-gnu/security", "lib/security", "usr/lib/security",
               "lib64/security", "usr/lib64/security")  # fmt: skip
_CONTAIN = re.compile(r"^\s*PrologFlags\s*=.*\bcontain\b", re.IGNORECASE | re.MULTILINE)


def module(paths: Paths) -> str:
    """Where the module is, as the machine sees it; "" where it is not."""
    for pattern in DIRECTORIES:
        for directory in sorted(paths.root.glob(pattern)):
            if (directory / MODULE).is_file():
                return f"/{(directory / MODULE).relative_to(paths.root)}"
    return ""


def with_block(text: str, found: str, users: Path) -> str:
    """The text of /etc/pam.d/sshd with meshd's lines after the other `account` lines, or without them. PURE.

    Args:
        text: the file.
        found: where the module is; "": the lines go.
        users: the file with the names of the users.
    """
    lines = _without(text.split("\n"))
    if not found:
        return "\n".join(lines)
    places = [at for at, line in enumerate(lines) if line.split()[:1] in (["account"], ["-account"], ["@include"])]
    accounts = [at for at in places if "account" in lines[at]]
    at = accounts[-1] + 1 if accounts else len(lines) - (lines[-1:] == [""])
    block = [
        BEGIN,
        f"account [success=ignore default=1] pam_listfile.so item=user sense=allow file={users} onerr=fail quiet",
        f"account required {found}",
        END,
    ]
    return "\n".join([*lines[:at], *block, *lines[at:]])


def _without(lines: list[str]) -> list[str]:
    if BEGIN not in lines or END not in lines[lines.index(BEGIN) :]:
        return lines
    begin = lines.index(BEGIN)
    return [*lines[:begin], *lines[lines.index(END, begin) + 1 :]]


def keep(paths: Paths) -> bool:
    """Have the lines exactly where the module is. Returns whether they are there.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        data = paths.pam_sshd.read_bytes()
    except FileNotFoundError:
        return False
    found = module(paths)
    text = data.decode("utf-8", "surrogateescape")
    new = with_block(text, found, paths.cluster_users)
    if new != text:
        replace_keeping(paths.pam_sshd, new.encode("utf-8", "surrogateescape"), 0o644)
    return bool(found)


def adopts(paths: Paths) -> bool:
    """Whether Slurm takes a user's session into the job: `PrologFlags=Contain`. True while slurm.conf is not known."""
    try:
        return bool(_CONTAIN.search(paths.slurm_conf_cache.read_text("utf-8", "replace")))
    except OSError:
        return True
