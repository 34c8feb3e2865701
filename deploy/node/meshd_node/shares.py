"""The section `shares`: directories that this machine mounts by NFS, before slurmd starts and while it is a node.

A mount is `hard`: who touches it while the server is away waits in the kernel. So the agent itself never touches what
is mounted. It reads the kernel's list of mounts, and mount, umount and stat run as children with a deadline. A
directory that has files of this machine is mounted over: they are there again when the share is taken away.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import share_probe
from .bounded import within
from .console import say
from .errors import Hopeless, NodeError, NotPossible, ToolFailed
from .files import read_json, write_atomic
from .packages import ensure
from .parse import plain
from .root_path import others_decide
from .section_fault import Fault
from .tools import find, run

if TYPE_CHECKING:
    from .node import Node

NFS_PORT = 2049
ANSWER_S = 20.0
"""For the server to accept a connection; then the section fails, and is tried again after a pause."""
CONNECT_S = 3.0
MOUNT_S = 45.0
UNMOUNT_S = 10.0
DETACH_S = 3.0
DIRECTORY_S = 5.0
USERS_MAX = 5

_PACKAGE = "nfs-common"
_UNNEEDED = ("rpcbind.service", "rpcbind.socket", "rpc-statd.service")
"""Services of the package that only older versions of NFS need. rpcbind listens on all networks."""
_NO_KERNEL = ("unknown filesystem type", "No such device", "Protocol not supported", "not supported by kernel")
_STALE = "Stale file handle"
_DEVICE = re.compile(r"[A-Za-z0-9.-]+:/[^\s,]*\Z")

Value = dict[str, Any]


class Share(NamedTuple):
    """A directory that this machine mounts: `device` is SERVER:PATH."""

    path: str
    device: str
    options: tuple[str, ...]

    @property
    def server(self) -> str:
        """The server's name or address."""
        return self.device.partition(":")[0]

    @property
    def port(self) -> int:
        """The server's port."""
        ports = [option[5:] for option in self.options if option.startswith("port=")]
        return int(ports[-1]) if ports else NFS_PORT


def apply(node: Node, value: Value, tell: Callable[[str], None]) -> None:
    """Mount what `value` says, and unmount what it no longer says.

    Args:
        node: this machine.
        value: {"shares": [{"path", "server", "source", "options"}]}; without a server it is the head's.
        tell: called with what it does, for people.

    Raises:
        Hopeless: this machine cannot mount by NFS.
        NodeError: a server does not answer, a mount failed, or a share that should go is still used.
        ValueError: the value cannot be used.
    """
    if node.state.left:
        return
    wanted = shares_of(node, value)
    kept = _Kept(node)
    # One share that fails does not keep the others from being mounted.
    errors: list[NodeError] = []
    for path in [path for path in kept.shares if path not in {share.path for share in wanted}]:
        errors += _tried(lambda path=path: _give_up(node, kept, path))  # type: ignore[misc]
    for share in wanted:
        errors += _tried(lambda share=share: _have(node, kept, share, tell))  # type: ignore[misc]
    for error in errors:
        if isinstance(error, Hopeless):
            raise error
    if errors:
        raise NodeError("; ".join(str(error) for error in errors))


def faults(node: Node, value: Value) -> list[Fault]:
    """What is wrong with the shares now. Never waits for a server."""
    found, kept = [], _Kept(node)
    for share in shares_of(node, value):
        point = kept.point(share.path)
        if mounted(node, point) != share.device:
            found.append(Fault("share_lost", f"{share.path} ({share.device}) is not mounted", again=True))
        elif one := share_probe.ask(point):
            found.append(Fault("share_lost", f"{share.path} ({share.device}) {one}", again=_STALE in one))
    return found


def leave(node: Node) -> None:
    """Unmount all shares: the machine is given back. One that is still used is detached."""
    kept = _Kept(node)
    for path in list(kept.shares):
        point = kept.point(path)
        if mounted(node, point) == kept.shares[path][0]:
            for error in _tried(lambda point=point: _unmount(node, point, UNMOUNT_S)):  # type: ignore[misc]
                say(str(error))
                _detach(node, point)
        kept.forget(path)


def detach(node: Node) -> None:
    """Take all shares out of the machine's directories; it shuts down. With a server away, to unmount would hang."""
    kept = _Kept(node)
    for path, (device, _options, _point) in kept.shares.items():
        if mounted(node, kept.point(path)) == device:
            _detach(node, kept.point(path))


def _detach(node: Node, point: Path) -> None:
    for error in _tried(lambda: _unmount(node, point, DETACH_S, lazy=True)):
        say(str(error))


def shares_of(node: Node, value: Value) -> list[Share]:
    """The shares in the section's value.

    Raises:
        KeyError, TypeError, ValueError: it cannot be used.
    """
    head = node.state.conf_server.rpartition(":")[0].strip("[]")
    shares = []
    for one in value["shares"]:
        options = tuple(str(option) for option in one["options"])
        share = Share(str(one["path"]), f"{one['server'] or head}:{one['source']}", options)
        if not share.path.startswith("/") or not _DEVICE.match(share.device) or any("," in word for word in options):
            raise ValueError(f"the share {share.path[:80]!r}")
        shares.append(share)
    return shares


def mounted(node: Node, point: Path) -> str:
    """What is mounted at a directory, by the kernel's list: SERVER:PATH, or another device; "" when nothing is."""
    wanted, found = str(point), ""
    for line in node.paths.mountinfo.read_text("utf-8", "replace").splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) > 4 and len(rest) > 1 and plain(fields[4]) == wanted:
            found = plain(rest[1])  # the last one is on top
    return found


def _tried(work: Callable[[], None]) -> list[NodeError]:
    try:
        work()
    except NodeError as error:
        return [error]
    return []


class _Kept:
    """What this agent has mounted, on disk, so that it unmounts nothing of others.

    By path: device, options, directory. The directory is another one than the path where the image has a link there.
    """

    def __init__(self, node: Node) -> None:
        self._root, self._file = node.paths.root, node.paths.shares
        saved = read_json(self._file).get("mounted")
        self.shares: dict[str, tuple[str, list[str], str]] = {
            str(path): (str(one[0]), [str(option) for option in one[1]], str(one[2]))
            for path, one in (saved.items() if isinstance(saved, dict) else ())
        }

    def point(self, path: str) -> Path:
        """The directory at which a share is, or will be."""
        known = self.shares.get(path)
        return Path(known[2]) if known else self._root / path.lstrip("/")

    def remember(self, share: Share, point: Path) -> None:
        self.shares[share.path] = (share.device, list(share.options), str(point))
        self._save()

    def forget(self, path: str) -> None:
        if self.shares.pop(path, None) is not None:
            self._save()

    def _save(self) -> None:
        write_atomic(self._file, json.dumps({"mounted": self.shares}).encode(), 0o600)


def _have(node: Node, kept: _Kept, share: Share, tell: Callable[[str], None]) -> None:
    """Mount a share where it is not mounted as it should be."""
    point = kept.point(share.path)
    there = mounted(node, point)
    ours = kept.shares.get(share.path)
    if there == share.device and (ours is None or ours[1] == list(share.options)):
        if _STALE not in share_probe.last_words(point):
            return
        _unmount(node, point, DETACH_S, lazy=True)  # its files are gone from the server: nobody can use it
    elif ours is not None and there == ours[0]:
        _unmount(node, point, UNMOUNT_S)  # it has other settings by now
    share_probe.stop(point)
    if not node.systemd:
        raise Hopeless("a container may not mount: shares are for virtual machines")
    _install(node, tell)
    tell(f"waits for {share.server} to answer on TCP port {share.port}")
    _reach(share)
    point = within(f"{share.path} (a directory)", lambda: _directory(node, share.path), DIRECTORY_S)
    kept.remember(share, point)
    tell(f"mounts {share.device} at {share.path}")
    try:
        # retry=0: the agent tries again itself, and sees meanwhile when the head wants something else.
        run(["mount", "-t", "nfs4", "-o", ",".join([*share.options, "retry=0"]), share.device, str(point)], MOUNT_S)
    except ToolFailed as error:
        if any(words in str(error) for words in _NO_KERNEL):
            raise Hopeless(f"the kernel of this image has no NFS: {error}") from None
        raise NodeError(f"{share.path}: {error}") from None
    say(f"{share.device} is mounted at {share.path}", urgent=True)


def _directory(node: Node, path: str) -> Path:
    """Make the directory; where it is, with all links followed, as the kernel's list will show it.

    Raises:
        NodeError: others than root could lead the mount elsewhere.
    """
    point = node.paths.root / path.lstrip("/")
    if place := others_decide(point):
        raise NodeError(f"{path} is not mounted: others than root may exchange {place}")
    point.mkdir(parents=True, exist_ok=True)
    return point.resolve()


def _install(node: Node, tell: Callable[[str], None]) -> None:
    """Install mount's helper for NFS, without the services that only older NFS needs."""
    if find("mount.nfs4"):
        return
    for unit in _UNNEEDED:
        if not (node.paths.units / unit).exists():
            node.paths.units.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                (node.paths.units / unit).symlink_to("/dev/null")
    tell(f"installs {_PACKAGE}")
    try:
        ensure(node.paths, [_PACKAGE], tell)
    except NotPossible as error:
        raise Hopeless(f"the image has no {_PACKAGE}: {error.reason}") from None


def _reach(share: Share) -> None:
    """Wait until the server accepts a connection. mount would wait in the kernel, and say less."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            socket.create_connection((share.server, share.port), CONNECT_S).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                text = f"{share.path}: {share.server} does not answer on TCP port {share.port}: {error}"
                raise NodeError(text) from None
        time.sleep(0.5)


def _give_up(node: Node, kept: _Kept, path: str) -> None:
    """Unmount a share that the settings no longer have."""
    point = kept.point(path)
    if mounted(node, point) == kept.shares[path][0]:
        _unmount(node, point, UNMOUNT_S)
    share_probe.stop(point)
    kept.forget(path)


def _unmount(node: Node, point: Path, timeout_s: float, *, lazy: bool = False) -> None:
    """Raises NodeError when it is still used, or hangs."""
    # -c: without it umount would look at the directory, and hang as everybody does.
    try:
        run(["umount", "-c", *(["-l"] if lazy else []), str(point)], timeout_s)
    except ToolFailed as error:
        users = ", ".join(_users(node.paths.proc, str(point))[:USERS_MAX])
        raise NodeError(f"{point} cannot be unmounted: {f'in use by {users}' if users else error}") from None
    say(f"{point} is {'detached' if lazy else 'unmounted'}")


def _users(proc: Path, path: str) -> list[str]:
    """Who uses a directory: `NAME (PID)`. Reads links in /proc alone, and none of the files that they name."""
    found = []
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit() and any(one == path or one.startswith(f"{path}/") for one in _links(entry)):
            with suppress(OSError):
                found.append(f"{(entry / 'comm').read_text().strip()} ({entry.name})")
    return found


def _links(entry: Path) -> Iterable[str]:
    for name in ("cwd", "root", "exe"):
        with suppress(OSError):
            yield os.readlink(entry / name)  # noqa: PTH115 - a path, whatever characters it has
    with suppress(OSError):
        for fd in (entry / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(fd)  # noqa: PTH115
