"""The section `accounts`: the head's users of the cluster are on this machine too, with the same numbers.

The agent edits passwd, group and their like itself, in one step under their lock. useradd does so account by account,
and changes none that is there. Accounts and groups with a number below 1000 never change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import account_files as files
from . import ssh_access
from .account_homes import Homes, NotTheirs
from .account_merge import BLOCKS, LEFT_OUT, Clash, Merged, Ours, between, merge
from .account_value import User, Wanted, read, without_slurms
from .console import say
from .errors import NodeError, NotPossible, ToolFailed, ToolMissing, ToolTimeout
from .files import write_if_changed
from .paths import Paths
from .processes import uids
from .section_fault import Fault
from .tools import find, run

if TYPE_CHECKING:
    from .node import Node

MOVED = "account_moved"
"""The fault code of what happened to an account of the image; it only tells."""
MOVED_SHOWN_S = 600.0
SHELL_MISSING = "shell_missing"
NOT_ADOPTED = "ssh_not_adopted"
CACHE_S = 10.0
MERGES_MAX = 5
NAMES_SHOWN = 3


@dataclass
class _Last:
    """How the last look ended."""

    clashes: list[Clash] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    shells: dict[str, list[str]] = field(default_factory=dict)
    notes: list[tuple[float, str]] = field(default_factory=list)
    signature: tuple[tuple[int, int, int], ...] = ()
    unadopted: bool = False
    users: list[User] = field(default_factory=list)
    homeless: set[str] = field(default_factory=set)


_last: dict[str, _Last] = {}
_lock = threading.Lock()


def apply(node: Node, value: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Make the machine's users those of `value`: {"users", "groups", "image_accounts", "shares"}.

    Raises:
        NotPossible: the number of a user belongs to another account, or the head's list cannot be used.
        NodeError, OSError: the tables are locked or cannot be written; nothing is half done.
    """
    wanted = _wanted(node, value)
    with _lock:
        tell(f"{len(wanted.users)} users")
        last = _bring(node.paths, wanted)
        _restrict_ssh(node)
    blocked = [clash for clash in last.clashes if clash.code == BLOCKS]
    if blocked:
        raise NotPossible(blocked[0].text, blocked[0].cure, "accounts")


def faults(node: Node, value: dict[str, Any]) -> Sequence[Fault]:
    """What is wrong now. Removes users whose last process has ended meanwhile.

    Raises:
        NodeError, OSError: the tables cannot be read or written.
    """
    if not _lock.acquire(blocking=False):
        return _words(_last.get(str(node.paths.root), _Last()))
    try:
        last = _last.get(str(node.paths.root))
        if last is None:
            return ()
        if _stale(node.paths, last, value):
            last = _bring(node.paths, _wanted(node, value))
        last.unadopted = _restrict_ssh(node) and not ssh_access.adopts(node.paths)
        return _words(last)
    finally:
        _lock.release()


def _restrict_ssh(node: Node) -> bool:
    """Whether ssh asks for a job. Not on pods: nobody but root logs in there."""
    return node.systemd and ssh_access.keep(node.paths)


def _wanted(node: Node, value: dict[str, Any]) -> Wanted:
    state = node.state
    return without_slurms(read(value), {state.slurm_uid, state.slurm_gid, state.munge_uid, state.munge_gid})


def _stale(paths: Paths, last: _Last, value: dict[str, Any]) -> bool:
    """Whether something has changed on the machine that the users depend on."""
    blocked = any(clash.code == BLOCKS for clash in last.clashes)
    if last.waiting or blocked or last.signature != files.signature(paths):
        return True
    # A share that is given up leaves users without a home.
    return Homes(paths, {}, tuple(value.get("shares", ()))).missing(last.users) - last.homeless != set()


def _bring(paths: Paths, wanted: Wanted) -> _Last:
    """Make it so, and remember how it ended."""
    ours, made = files.load(paths)
    homes = Homes(paths, made, wanted.shares)
    merged, failed = _merge(paths, wanted, ours, homes)
    clashes = [*merged.clashes, *failed]
    for name, _ in merged.gone:
        say(f"the user {name} is gone")
    files.save(paths, merged.ours, homes.made)
    names = "".join(f"{user.name}\n" for user in merged.placed)
    write_if_changed(paths.cluster_users, names.encode())
    before = _last.get(str(paths.root), _Last())
    now_s = time.monotonic()
    for note in merged.notes:
        say(note)
    notes = [*before.notes, *((now_s, note) for note in merged.notes)]
    last = _Last(
        clashes, merged.waiting, _missing_shells(paths, merged),
        [one for one in notes if now_s - one[0] < MOVED_SHOWN_S], files.signature(paths),
        users=merged.placed, homeless=homes.missing(merged.placed),
    )  # fmt: skip
    _last[str(paths.root)] = last
    return last


def _merge(paths: Paths, wanted: Wanted, ours: Ours, homes: Homes) -> tuple[Merged, list[Clash]]:
    """Merge under the lock. Directories come first, without the lock: that may take long.

    Returns:
        What was done, and homes that could not be made.
    """
    ready: set[object] = set()
    failed: list[Clash] = []
    for _ in range(MERGES_MAX):
        with files.locked(paths):
            old = files.read(paths)
            merged = merge(old, wanted, ours, uids(paths.proc))
            due: list[object] = [*merged.moves, *merged.gone, *merged.placed]
            if ready.issuperset(due):
                files.save(paths, between(ours, merged), homes.made)
                if files.write(paths, old, merged.tables):
                    _drop_caches(paths)
                return merged, failed
        if merged.moves:
            files.save(paths, replace(ours, renumbering=merged.renumbering), homes.made)
        for move in merged.moves:
            homes.move(move)
        for _, uid in merged.gone:
            homes.close(uid)
        failed = _make_homes(homes, merged)
        ready.update(due)
    raise NodeError("the accounts of this machine change all the time: another program edits them")


def _make_homes(homes: Homes, merged: Merged) -> list[Clash]:
    """Make what is missing. A home that cannot be made keeps nobody else off the machine."""
    failed = []
    for user in merged.placed:
        try:
            homes.make(user)
        except NotTheirs as error:
            text = f"the home {user.home} of user {user.name} is not used: {error}"
            failed.append(Clash(LEFT_OUT, text, "give the user another home, or its directories to root"))
        except OSError as error:
            text = f"the home {user.home} of user {user.name} cannot be made: {error.strerror}"
            failed.append(Clash(LEFT_OUT, text, "free space there, or give the user another home"))
    return failed


def _missing_shells(paths: Paths, merged: Merged) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for user in merged.placed:
        found.setdefault(user.shell, []).append(user.name)
    return {shell: names for shell, names in found.items() if not (paths.root / shell.lstrip("/")).exists()}


def _words(last: _Last) -> list[Fault]:
    """At most one fault of each code."""
    found = []
    for code in (BLOCKS, LEFT_OUT):
        clashes = [clash for clash in last.clashes if clash.code == code]
        if clashes:
            more = f" and {len(clashes) - 1} more" if len(clashes) > 1 else ""
            found.append(Fault(code, f"{clashes[0].text}{more} ({clashes[0].cure})"))
    for shell, names in sorted(last.shells.items())[:1]:
        users = ", ".join(names[:NAMES_SHOWN]) + (
            f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        )
        found.append(Fault(SHELL_MISSING, f"{shell}, the shell of {users}, is not installed"))
    if last.unadopted:
        found.append(
            Fault(NOT_ADOPTED, "slurm.conf lacks PrologFlags=Contain: a session by ssh is not part of the job")
        )
    notes = [note for at_s, note in last.notes if time.monotonic() - at_s < MOVED_SHOWN_S]
    if notes:
        found.append(Fault(MOVED, "; ".join(dict.fromkeys(notes))))
    return found


def _drop_caches(paths: Paths) -> None:
    """Tell the machine's caches of accounts that these have changed; both look by themselves too, later."""
    calls = []
    if paths.nscd_socket.exists():
        calls += [["nscd", "-i", "passwd"], ["nscd", "-i", "group"]]
    if paths.sss.exists() and find("sss_cache"):
        calls += [["sss_cache", "-U", "-G"]]
    for call in calls:
        try:
            run(call, CACHE_S)
        except (ToolFailed, ToolMissing, ToolTimeout) as error:
            say(f"a cache of accounts may be late: {error}")
