"""Keeps what was on an owned machine before meshd changed it, so that all of it can be put back.

Python's audit hook shows this process each change of a file before it happens, whoever in the agent makes it: no writer
has to remember anything. A change whose original cannot be kept does not happen. What programs change (apt, useradd,
a set-up script) is seen by looking at the places before and after: `around`.

There are two layers. `node` is what one stay as a node changed: it is taken back when the machine is free again.
`host` is what the whole stay in the cluster changed, packages above all: it is taken back when the machine is evicted.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Union

from . import tools
from .errors import NodeError
from .paths import Paths
from .snapshot import ABSENT, DIRECTORY, FILE, LINK, Snapshot, Store, from_json, take

HOST, NODE = "host", "node"
LAYERS = (HOST, NODE)

OWN = ("etc/meshd-node", "var/lib/meshd-node", "opt/meshd-node", "etc/meshd-host", "var/lib/meshd-host",
       "opt/meshd-host")  # fmt: skip
"""meshd's own directories: they go as a whole."""

SECRET = ("etc/munge",)
"""Where meshd's secrets are: what it writes there is kept nowhere else."""

PASSING = ("proc", "sys", "dev/shm", "dev/pts", "run", "tmp", "var/tmp", "var/run")
"""What no reboot leaves."""

SEEN_BY_APT = ("etc", "usr/share/keyrings", "var/lib/apt/extended_states", "var/lib/ucf")
"""What a package's scripts change that its removal does not change back."""
NAMES_OF_APT = ("var/lib/apt/lists",)
"""Here only new names count: lists that apt has fetched again are apt's affair."""
_TABLES = ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")
TABLES = tuple(f"etc/{name}{end}" for name in _TABLES for end in ("", "-"))
SEEN_BY_ACCOUNTS = (*TABLES, "etc/.pwd.lock")

CHANGERS = {
    **dict.fromkeys(("apt-get", "dpkg", "deb-systemd-helper"), SEEN_BY_APT),
    **dict.fromkeys(("useradd", "usermod", "groupadd", "groupmod"), SEEN_BY_ACCOUNTS),
}
"""The programs that the agent runs and that change the machine's files, and where."""
_INSTALLERS = ("apt-get", "dpkg", "setup")

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_Event = Callable[["Before", tuple[Any, ...]], None]
_After = Union[Snapshot, Callable[[Snapshot], Snapshot], None]


@dataclass
class Record:
    """One change, or several one after the other, of one path.

    Attributes:
        number: unique in its layer.
        path: absolute, as on the machine.
        before: what was there.
        after: what the change left there; None where nobody knows.
        ours: at the begin of the undo it was as `after` says.
        undone: it is taken back.
    """

    number: str
    path: str
    before: Snapshot
    after: Snapshot | None = None
    ours: bool = False
    undone: bool = False


class Log:
    """The records of one layer: a file to which lines are added, and which survives a cut of power at any time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.records: list[Record] = []
        self.facts: dict[str, Any] = {}
        self._count = 0
        self._load()

    def _load(self) -> None:
        by_number: dict[str, Record] = {}
        try:
            lines = self.file.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # the last line may be cut
                value = json.loads(line)
                if "fact" in value:
                    self._learn(value["fact"], value["value"])
                    continue
                record = by_number.get(value["n"])
                if record is None:
                    record = Record(value["n"], value["path"], from_json(value["before"]))
                    by_number[record.number] = record
                    self.records.append(record)
                record.before = from_json(value["before"]) if "before" in value else record.before
                if "after" in value:
                    record.after = from_json(value["after"]) if value["after"] else None
                record.ours = record.ours or bool(value.get("ours"))
                record.undone = record.undone or bool(value.get("undone"))
        self._count = len(self.records)

    def add(self, path: str, before: Snapshot, after: Snapshot | None = None, sync: bool = True) -> Record:
        """Record a change that is about to happen."""
        self._count += 1
        record = Record(f"{self._count}-{os.getpid()}", path, before, after)
        self.records.append(record)
        value = {"n": record.number, "path": path, "before": before.as_json()}
        self._write({**value, "after": after.as_json()} if after else value, sync)
        return record

    def settle(self, record: Record, after: Snapshot | None) -> None:
        """Say what the change leaves."""
        if record.after is None or after is None or not record.after.same(after):
            record.after = after
            self._write({"n": record.number, "after": after.as_json() if after else None}, sync=True)

    def restate(self, record: Record, before: Snapshot, after: Snapshot) -> None:
        """Correct the record after somebody else changed the path: it is `after` now, and has to become `before`."""
        record.before, record.after = before, after
        self._write({"n": record.number, "before": before.as_json(), "after": after.as_json()}, sync=True)

    def mark(self, record: Record, word: str) -> None:
        """Say of a record that it is `ours` or `undone`."""
        setattr(record, word, True)
        self._write({"n": record.number, word: True}, sync=True)

    def learn(self, name: str, value: list[str]) -> None:
        """Add to a fact: the packages that came, the host's name, ..."""
        if value:
            self._learn(name, value)
            self._write({"fact": name, "value": value}, sync=True)

    def _learn(self, name: str, value: list[str]) -> None:
        known = self.facts.setdefault(name, [])
        known += [one for one in value if one not in known]

    def _write(self, value: dict[str, Any], sync: bool) -> None:
        self.file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        fd = os.open(str(self.file), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"\n" + json.dumps(value, separators=(",", ":")).encode() + b"\n")
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)


def _fresh(file: Path) -> Log:
    file.unlink(missing_ok=True)
    return Log(file)


class Before:
    """What was there before.

    Args:
        paths: the machine's paths.
        layer: to which the changes of this process belong.
    """

    def __init__(self, paths: Paths, layer: str = NODE) -> None:
        self._root = paths.root
        self._layer = layer
        self.directory = paths.before
        self.store = Store(self.directory / "contents")
        self.logs = {name: Log(self.directory / f"{name}.log") for name in LAYERS}
        self._lock = threading.RLock()
        self._busy = threading.local()
        self._open: dict[str, Record] = {}
        for record in self.logs[layer].records:
            if not record.undone:
                self._open[record.path] = record

    # -- what this process does itself ----------------------------------------------------------------------------

    def watch(self) -> None:
        """Keep what this process changes, from now on to its end."""
        sys.addaudithook(self._audit)
        tools.use_around(self.around)

    def _audit(self, event: str, words: tuple[Any, ...]) -> None:
        work = _EVENTS.get(event)
        if work is None or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            with self._lock:
                work(self, words)
        finally:
            self._busy.now = False

    def keep(self, path: Path, after: _After = None, content: bool = True) -> None:
        """Keep what is at a path, which is about to change.

        Args:
            path: of this process.
            after: what will be there, or how it follows from what is there; None where the writer does not know.
            content: False: only its rights change.

        Raises:
            OSError: it cannot be kept, so it must not be changed.
        """
        name = str(path)
        if self._ignored(name) or self._in_whole(name):
            return
        log, record = self.logs[self._layer], self._open.get(name)
        if record is not None and content and record.before.kind == FILE and not record.before.sha256:
            record = None  # so far only its rights have changed
        known = record is not None and record.after is None
        now = Snapshot() if known and not callable(after) else take(path, None if known else self.store, content)
        if record is not None and not known and record.after is not None and not record.after.same(now):
            record = None  # somebody else has changed it in between
        if callable(after):
            after = after(now if record is None or record.after is None else record.after)
        if record is None:
            self._open[name] = log.add(name, now, after, sync=content)
        elif after is not None or not known:
            log.settle(record, after)

    def secret(self, path: Path) -> bool:
        """Whether what meshd puts there must not be kept anywhere else."""
        inside = os.path.relpath(str(path), str(self._root))
        return any(inside.startswith(f"{one}/") for one in (*SECRET, *OWN))

    def forget(self, layer: str) -> None:
        """Drop a layer that is taken back, and the contents that no other layer needs."""
        log = self.logs[layer] = _fresh(self.logs[layer].file)
        self._open = {} if layer == self._layer else self._open
        needed = {shot.sha256 for one in self.logs.values() for record in one.records
                  for shot in (record.before, record.after) if shot is not None}  # fmt: skip
        for path in self.store.all():
            if path.name not in needed:
                path.unlink()
        assert not log.records

    def _ignored(self, name: str) -> bool:
        inside = os.path.relpath(name, str(self._root))
        if inside.startswith(".."):
            return True
        if any(inside == one or inside.startswith(f"{one}/") for one in (*OWN, *PASSING)):
            return True
        base = os.path.basename(inside)  # noqa: PTH119
        return base.startswith(".") and base.endswith(f".{os.getpid()}.{threading.get_ident()}")  # files.write_atomic

    def _in_whole(self, name: str) -> bool:
        """Whether it is in a directory that came as a whole."""
        return any(
            record.after is not None and record.after.whole
            for record in (self._open.get(str(parent)) for parent in Path(name).parents)
            if record is not None
        )

    # -- what programs do -----------------------------------------------------------------------------------------

    @contextmanager
    def around(self, program: str) -> Iterator[None]:
        """Keep what a program changes while the context lasts: as a change of the whole stay in the cluster.

        Args:
            program: its name; those that are not in `CHANGERS` change nothing.
        """
        places = CHANGERS.get(program) or (SEEN_BY_APT if program in _INSTALLERS else ())
        if not places:
            yield
            return
        installs = program in _INSTALLERS
        with self._quiet():
            before = scan(self._root, places, self.store)
            names = names_of_apt(self._root) if installs else {}
            packages = installed() if installs else {}
        try:
            yield
        finally:
            with self._quiet():
                self.note(before, scan(self._root, places))
                if installs:
                    self.note(names, {**names, **names_of_apt(self._root, names)})
                    self.note_packages(packages, installed())

    def note(self, before: dict[str, Snapshot], after: dict[str, Snapshot]) -> None:
        """Record in the layer `host` what differs between two looks at the same places."""
        log = self.logs[HOST]
        last = {record.path: record for record in log.records if not record.undone}
        with self._lock:
            for name in sorted({*before, *after}):
                old, new = before.get(name, Snapshot()), after.get(name, Snapshot())
                if self._ignored(name) or old.same(new):
                    continue
                record = last.get(name)
                if old.kind == new.kind == FILE and not self.secret(Path(name)):
                    with suppress(OSError):
                        self.store.keep(Path(name))  # for a merge, should somebody else change it too
                if record is not None and record.after is not None and record.after.same(old):
                    log.settle(record, new)
                else:
                    log.add(name, old, new)

    def note_packages(self, before: dict[str, str], after: dict[str, str]) -> None:
        """Record which packages came, and which have another version than before."""
        log = self.logs[HOST]
        log.learn("packages", [name for name in after if name not in before])
        log.learn("upgraded", [
            f"{name} {before[name]} -> {after[name]}" for name in after if before.get(name, after[name]) != after[name]
        ])  # fmt: skip

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """What this thread does itself meanwhile is no change."""
        was, self._busy.now = getattr(self._busy, "now", False), True
        try:
            yield
        finally:
            self._busy.now = was


def scan(root: Path, places: Iterable[str], store: Store | None = None, seen_at: Path | None = None
         ) -> dict[str, Snapshot]:  # fmt: skip
    """All that is at and below some places.

    Args:
        root: of the machine.
        places: relative to it.
        store: where contents are kept.
        seen_at: a copy of the machine's root, at which to look instead.
    """
    found: dict[str, Snapshot] = {}
    base = seen_at or root

    def look(path: Path) -> Snapshot:
        shot = take(path, store)
        if shot.kind != ABSENT:
            found[str(root / path.relative_to(base))] = shot
        return shot

    for place in places:
        top = base / place
        if look(top).kind == DIRECTORY:
            for directory, names, files in os.walk(str(top)):
                for name in (*names, *files):
                    with suppress(FileNotFoundError, PermissionError):
                        look(Path(directory) / name)
    return found


def names_of_apt(root: Path, known: Iterable[str] = ()) -> dict[str, Snapshot]:
    """What is in `NAMES_OF_APT`, but for what is known."""
    have = set(known)
    paths = [path for place in NAMES_OF_APT for path in (root / place).rglob("*") if str(path) not in have]
    return {str(path): take(path, content=False) for path in sorted(paths)}


def installed() -> dict[str, str]:
    """The installed packages, each with its version; {} where there is no dpkg."""
    if not tools.find("dpkg-query"):
        return {}
    words = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${binary:Package} ${Version}\n"]
    try:
        lines = tools.run(words, 60.0).stdout.splitlines()
    except NodeError:
        return {}
    return parse_packages(lines)


def parse_packages(lines: Sequence[str]) -> dict[str, str]:
    """The packages that have files here, from dpkg-query's lines: status, name, version."""
    rows = (line.split() for line in lines)
    return {row[1]: row[2] for row in rows if len(row) == 3 and row[0] not in ("not-installed", "config-files")}


# -- Python's events: https://docs.python.org/3/library/audit_events.html ---------------------------------------------


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
    log = before.logs[before._layer]
    if not log.facts.get("hostname"):
        log.learn("hostname", [os.uname().nodename])


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
