"""I/O: the script that a pool's `setup` names. Every machine of the pool runs it as root, so only root may write it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from meshd.codes import FaultCode
from meshd.config.checks import SCRIPT_MAX_B, is_text
from meshd.config.models import Settings
from meshd.errors import Fault
from meshd.runtime.root_path import others_decide
from meshd.settings_words import dotted, show

ROOT_UID = 0


@dataclass(frozen=True, slots=True)
class SetupScript:
    """A script, or why it cannot be used: `fault` and `cure` are "" where it can."""

    text: str = ""
    fault: str = ""
    cure: str = ""


def read_script(setup: str, owner_uid: int = ROOT_UID) -> SetupScript:
    """The script that a setting holds or names.

    Args:
        setup: the setting; "" for none.
        owner_uid: who must own the file, its directory and all above.
    """
    if not setup or is_text(setup):
        return SetupScript(setup)
    path = Path(setup)
    try:
        if place := others_decide(path):
            text = f"others than root may exchange {place}, and every machine of the pool runs {path} as root"
            return SetupScript(fault=text, cure=f"let only root write {place} and the directory above it")
        real = path.resolve(strict=True)
        for one in (real, *real.parents):
            found = one.stat()
            shared = found.st_mode & 0o022 and not (one is not real and found.st_mode & stat.S_ISVTX)
            if found.st_uid not in (owner_uid, ROOT_UID) or shared:
                text = f"others than root may change {one}, and every machine of the pool runs {path} as root"
                return SetupScript(fault=text, cure=f"let only root write {one}")
        if not stat.S_ISREG(real.stat().st_mode):
            return SetupScript(fault=f"{path} is no file", cure="name a script")
        with real.open("rb") as file:
            data = file.read(SCRIPT_MAX_B + 1)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        return SetupScript(fault=f"{path} cannot be read by meshd: {why}", cure=f"`chmod 0644 {path}`")
    if len(data) > SCRIPT_MAX_B:
        return SetupScript(fault=f"{path} has more than {SCRIPT_MAX_B} bytes", cure="have it fetch what is large")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return SetupScript(fault=f"{path} is not UTF-8 text", cure="name a script")
    return SetupScript(text) if "\0" not in text else SetupScript(fault=f"{path} is no script", cure="name a script")


def script_doubts(settings: Settings) -> Iterator[Fault]:
    """Scripts that cannot be used at this moment: machines of their pools are given back as soon as they join."""
    for name, pool in settings.pools.items():
        found = read_script(pool.setup)
        if found.fault:
            key = ("pools", name, "setup")
            yield Fault(f"{dotted(key)} = {show(pool.setup)}: {found.fault}", found.cure, key, code=FaultCode.BAD_VALUE)
