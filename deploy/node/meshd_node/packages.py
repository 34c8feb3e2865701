"""Installs missing packages with apt, without starting their services: the agent starts those that it needs.

At a first boot other programs use apt too: unattended-upgrades, apt-daily and cloud-init hold the lock of the lists
(which `DPkg::Lock::Timeout` does not cover), dpkg's or debconf's for minutes; a mirror answers 503, or a list is
truncated. So the agent retries for minutes, and keeps the error of the last try.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .console import say
from .errors import NodeError, NoSuchPackage, NotPossible, ToolFailed, ToolTimeout
from .files import write_atomic
from .paths import Paths
from .tools import Result, find, run

if TYPE_CHECKING:
    from .node import Node

TOTAL_S = 480.0
"""For all tries together. Less than `timing.join_timeout_s`, for which the head waits."""
PAUSE_S = 5.0
TRY_TIMEOUT_S = 300.0
SURE = 3
"""A package does not exist when this many complete updates do not show it."""
_UPDATE = ["apt-get", "update", "-q", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30"]
_INSTALL = [
    "apt-get", "install", "-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=60",
    "-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
]  # fmt: skip
_turn = threading.Lock()
_POLICY = b"#!/bin/sh\nexit 101\n"
_CUT_SHORT = ("mergelist", "be parsed", "hash sum mismatch", "no package: header")
_UNKNOWN = ("unable to locate package", "has no installation candidate")
_NOT_FETCHED = ("failed to fetch", "err:", "some index files failed", "not get lock", "unable to lock")


def apply(node: Node, value: dict[str, Any], tell: Callable[[str], None]) -> None:
    """The section `packages`: install what its pool wants. `value`: {"names": apt's names}.

    Raises:
        Hopeless: apt knows no such package.
        NotPossible: it failed until the deadline, or apt is missing.
    """
    ensure(node.paths, [str(name) for name in value["names"]], tell)


def ensure(
    paths: Paths,
    names: Sequence[str],
    report: Callable[[str], None] = lambda _: None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Install those of `names` that are not installed.

    Args:
        paths: where the files are.
        names: apt's names.
        report: called with the error text of each try that fails.
        monotonic: seconds.
        sleep: pauses, in seconds.

    Raises:
        Hopeless: apt knows no such package.
        NotPossible: apt is missing, or failed until the deadline; with apt's last error.
    """
    with _turn:
        _ensure(paths, names, report, monotonic, sleep)


def _ensure(
    paths: Paths,
    names: Sequence[str],
    report: Callable[[str], None],
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    missing = [name for name in names if not _installed(name)]
    if not missing:
        return
    wanted = " ".join(missing)
    if not find("apt-get"):
        raise NotPossible(
            f"this image lacks {wanted}, and there is no apt-get to install them",
            "use an image that has it", "packages",
        )  # fmt: skip
    say(f"installing {wanted}", urgent=True)
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    held = _hold_services(paths)
    began_s, tries, unknown, last = monotonic(), 0, 0, ""
    try:
        while True:
            tries += 1
            why, clean = _try(paths, missing)
            if not why:
                _not_at_boot(paths, missing)
                return
            text = f"cannot install {wanted} (try {tries}): {why}"
            if text.partition(": ")[2] != last:
                say(text, urgent=True)
            report(text)
            last = why
            unknown = unknown + 1 if clean and any(word in why.lower() for word in _UNKNOWN) else 0
            over_s = monotonic() - began_s
            if unknown >= SURE or over_s + PAUSE_S > TOTAL_S:
                failure = NoSuchPackage if unknown >= SURE else NotPossible
                raise failure(
                    f"cannot install {wanted}: tried {tries} times in {over_s:.0f} s: {why}",
                    "use an image that has it", "packages",
                )  # fmt: skip
            sleep(PAUSE_S)
    finally:
        if held:
            paths.policy_rc_d.unlink(missing_ok=True)


def _not_at_boot(paths: Paths, names: Sequence[str]) -> None:
    """On an owned machine, which boots when it is no node too, the agent alone starts these services."""
    helper = find("deb-systemd-helper") if paths.host_file.exists() else ""
    for unit in ("slurmd", "munge"):
        if helper and unit in names:
            run([helper, "disable", f"{unit}.service"], TRY_TIMEOUT_S, check=False)


def _try(paths: Paths, missing: Sequence[str]) -> tuple[str, bool]:
    """(why it failed, "" when all are installed; whether the update fetched all lists)."""
    # Finish an interrupted installation. It fails without harm while another program holds the lock.
    with suppress(NodeError):
        run(["dpkg", "--configure", "-a"], TRY_TIMEOUT_S, check=False)
    clean, why = False, ""
    try:
        update = run(_UPDATE, TRY_TIMEOUT_S, check=False)
        words = _words(update)
        clean = update.returncode == 0 and not any(word in words.lower() for word in _NOT_FETCHED)
        # Its exit code is 0 even when it fetched nothing.
        why = "" if clean else f"apt-get update exited with {update.returncode}: {_short(words)}; "
        if any(word in words.lower() for word in _CUT_SHORT):
            _drop_lists(paths)
        run([*_INSTALL, *missing], TRY_TIMEOUT_S)
    except (ToolFailed, ToolTimeout) as error:
        if any(word in str(error).lower() for word in _CUT_SHORT):
            _drop_lists(paths)
        return f"{why}{error}", clean
    return "", clean


def _hold_services(paths: Paths) -> bool:
    """Keep packages from starting services. Returns whether to undo it, also for our own leftover file."""
    with suppress(OSError):
        return paths.policy_rc_d.read_bytes() == _POLICY
    write_atomic(paths.policy_rc_d, _POLICY, 0o755)
    return True


def _drop_lists(paths: Paths) -> None:
    """Remove the lists: apt keeps a truncated one, and fetches only missing ones."""
    for path in paths.apt_lists.glob("*"):
        if path.is_file() and path.name != "lock":
            with suppress(OSError):
                path.unlink()


def _words(result: Result) -> str:
    return "\n".join(text for text in (result.stdout.strip(), result.stderr.strip()) if text)


def _short(words: str) -> str:
    """The error lines, or the end of the text."""
    lines = [line.strip() for line in words.splitlines()]
    found = [line for line in lines if line.startswith(("E:", "W:", "Err:", "dpkg:", "debconf:"))]
    return " ".join(found or lines)[-300:]


def _installed(name: str) -> bool:
    if not find("dpkg-query"):
        return False
    result = run(["dpkg-query", "-W", "-f", "${db:Status-Status}", name], 15.0, check=False)
    return result.returncode == 0 and result.stdout.strip() == "installed"
