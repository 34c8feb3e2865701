"""Keeps what was on an owned machine before meshd changed it, so that all of it can be put back.

`audit` shows each change of a file before it happens, whoever in the agent makes it: no writer has to remember it. A
change whose original cannot be kept does not happen. What programs change (apt, useradd, a set-up script) is seen by
looking at the places before and after: `around`.

There are two layers. `node` is what one stay as a node changed: it is taken back when the machine is free again.
`host` is what the whole stay in the cluster changed, packages above all: it is taken back when the machine is evicted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Union

from . import tools
from .errors import NodeError
from .paths import Paths
from .record import Log, Record
from .snapshot import ABSENT, DIRECTORY, FILE, Snapshot, Store, take

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

_After = Union[Snapshot, Callable[[Snapshot], Snapshot], None]


def _fresh(file: Path) -> Log:
    file.unlink(missing_ok=True)
    return Log(file)


class Before:
    """What was there before.

    Args:
        paths: the machine's paths.
        layer: to which the changes of this process belong.

    Attributes:
        lock: one thread at a time keeps something.
    """

    def __init__(self, paths: Paths, layer: str = NODE) -> None:
        self._root = paths.root
        self._layer = layer
        self.directory = paths.before
        self.store = Store(self.directory / "contents")
        self.logs = {name: Log(self.directory / f"{name}.log") for name in LAYERS}
        self.lock = threading.RLock()
        self._busy = threading.local()
        self._open: dict[str, Record] = {}
        for record in self.logs[layer].records:
            if not record.undone:
                self._open[record.path] = record

    # -- what this process does itself ----------------------------------------------------------------------------

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

    def keep_hostname(self) -> None:
        """Keep the kernel's host name, which is about to change."""
        log = self.logs[self._layer]
        if not log.facts.get("hostname"):
            log.learn("hostname", [os.uname().nodename])

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
        with self.quiet():
            before = scan(self._root, places, self.store)
            names = names_of_apt(self._root) if installs else {}
            packages = installed() if installs else {}
        try:
            yield
        finally:
            with self.quiet():
                self.note(before, scan(self._root, places))
                if installs:
                    self.note(names, {**names, **names_of_apt(self._root, names)})
                    self.note_packages(packages, installed())

    def note(self, before: dict[str, Snapshot], after: dict[str, Snapshot]) -> None:
        """Record in the layer `host` what differs between two looks at the same places."""
        log = self.logs[HOST]
        last = {record.path: record for record in log.records if not record.undone}
        with self.lock:
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

    # -- what meshd does to keep it -------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether this thread is quiet."""
        return bool(getattr(self._busy, "now", False))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What this thread does meanwhile is no change."""
        was, self._busy.now = self.busy, True
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
