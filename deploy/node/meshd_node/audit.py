"""Shows `before` each change of a file by this process before it happens, with Python's audit hook.

The events: https://docs.python.org/3/library/audit_events.html
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import tools
from .before import Before
from .snapshot import DIRECTORY, LINK, Snapshot, take

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OF_FD = re.compile("/proc/self/fd/[0-9]+")
"""How a change names exactly what is open."""
_Event = Callable[[Before, "tuple[Any, ...]"], None]


def watch(before: Before) -> None:
    """Keep what this process changes, and the programs that it runs, from now on to its end."""

    def hook(event: str, words: tuple[Any, ...]) -> None:
        work = _EVENTS.get(event)
        if work is None or before.busy:
            return
        with before.quiet(), before.lock:
            work(before, words)

    sys.addaudithook(hook)
    tools.use_around(before.around)


def _at(path: Any, dir_fd: Any = -1) -> Path | None:
    """The absolute path of an event's path, its directory without links; None where it has none."""
    if isinstance(path, int):
        try:
            name = os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115
        except OSError:
            return None
        return Path(name) if name.startswith("/") and not name.endswith(" (deleted)") else None
    try:
        text = os.fsdecode(path)
    except TypeError:
        return None
    if _OF_FD.fullmatch(text):
        return _at(int(text.rpartition("/")[2]))
    if not text.startswith("/") and isinstance(dir_fd, int) and dir_fd >= 0:
        try:
            text = f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{text}"  # noqa: PTH115
        except OSError:
            return None
    directory, name = os.path.split(os.path.abspath(text))  # noqa: PTH100
    return Path(os.path.realpath(directory)) / name


def _on_open(before: Before, words: tuple[Any, ...]) -> None:
    path, _, flags = words
    if isinstance(path, int) or not isinstance(flags, int) or not flags & _WRITES:
        return
    found = _at(path)
    if found is None:
        return
    if not flags & os.O_NOFOLLOW:
        found = Path(os.path.realpath(str(found)))
    before.keep(found)


def _on_rename(before: Before, words: tuple[Any, ...]) -> None:
    source, target = _at(words[0], words[2]), _at(words[1], words[3])
    if source is None or target is None:
        return
    comes = take(source, None if before.secret(target) else before.store)
    before.keep(target, replace(comes, whole=True) if comes.kind == DIRECTORY else comes)
    before.keep(source, Snapshot())


def _on_remove(before: Before, words: tuple[Any, ...]) -> None:
    found = _at(words[0], words[1])
    if found is not None:
        before.keep(found, Snapshot())


def _on_mkdir(before: Before, words: tuple[Any, ...]) -> None:
    found = _at(words[0], words[2])
    if found is not None and found.parent.exists() and not found.exists():
        before.keep(found)


def _on_symlink(before: Before, words: tuple[Any, ...]) -> None:
    found = _at(words[1], words[2])
    if found is not None:
        before.keep(found, Snapshot(LINK, to=os.fsdecode(words[0]), uid=os.geteuid(), gid=os.getegid()))


def _on_link(before: Before, words: tuple[Any, ...]) -> None:
    found = _at(words[1], words[3])
    if found is not None:
        before.keep(found)


def _on_chmod(before: Before, words: tuple[Any, ...]) -> None:
    found, mode = _at(words[0], words[2]), words[1]
    if found is not None:
        before.keep(found, lambda now: replace(now, mode=mode & 0o7777), content=False)


def _on_chown(before: Before, words: tuple[Any, ...]) -> None:
    found, uid, gid = _at(words[0], words[3]), words[1], words[2]
    if found is not None:
        before.keep(
            found,
            lambda now: replace(now, uid=now.uid if uid == -1 else uid, gid=now.gid if gid == -1 else gid),
            content=False,
        )


def _on_truncate(before: Before, words: tuple[Any, ...]) -> None:
    found = _at(words[0])
    if found is not None:
        before.keep(found)


def _on_setxattr(before: Before, words: tuple[Any, ...]) -> None:
    found = _at(words[0])
    if found is not None:
        before.keep(found, content=False)


def _on_hostname(before: Before, _words: tuple[Any, ...]) -> None:
    before.keep_hostname()


_EVENTS: dict[str, _Event] = {
    "open": _on_open,
    "os.rename": _on_rename,
    "os.remove": _on_remove,
    "os.rmdir": _on_remove,
    "os.mkdir": _on_mkdir,
    "os.symlink": _on_symlink,
    "os.link": _on_link,
    "os.chmod": _on_chmod,
    "os.chown": _on_chown,
    "os.truncate": _on_truncate,
    "os.setxattr": _on_setxattr,
    "os.removexattr": _on_setxattr,
    "socket.sethostname": _on_hostname,
}
