"""The node settings: what the head gives this machine beside munge and Slurm, in sections.

The head sends the value of each section with a digest. This module keeps it on disk, has the section's own module apply
it, and reports how far that is. The head lets slurmd start when all sections are applied; after a reboot the agent
applies them again before it starts slurmd.

To add a section: a module with `apply(node, value, tell)`, and a line in KINDS. `apply` makes the machine as the value
says, whatever was there before: it runs at each start of the agent, and again after a failure. It raises NodeError, or
OSError, for what may pass, and Hopeless for what cannot. `tell` is called with what it does, for people. Where the work
can come undone later, `faults(node, value)` returns what is wrong now; it must not hang.

Each section has a thread, so that a long one does not hold up the others, and polls go on meanwhile.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .backoff import Backoff
from .console import say
from .errors import Hopeless, NodeError, NotPossible
from .files import read_json, write_atomic
from .section_fault import Fault

if TYPE_CHECKING:
    from .node import Node

WORKING, APPLIED, FAILED = "working", "applied", "failed"
DETAIL_CHARS_MAX = 400
FAULTS_EVERY_S = 3.0
FAULTS_MAX = 16
AGAIN_FIRST_S = 1.0
AGAIN_MAX_S = 60.0
QUIET_FAILURES = 2
"""The first failures, within 3 s, are no trouble for people: a server may be about to learn of this machine."""
_DIGEST = re.compile(r"[0-9a-f]{16}\Z")

Value = dict[str, Any]
Tell = Callable[[str], None]


class Kind(NamedTuple):
    """A section that this agent knows.

    Attributes:
        apply: makes the machine as the value says; see the module.
        needs: the sections that come first, where the machine has them.
        faults: what is wrong with it now.
        slow: the key of its value that names work which may take minutes; "" where there is no such work.
    """

    name: str
    apply: Callable[[Node, Value, Tell], None]
    needs: tuple[str, ...] = ()
    faults: Callable[[Node, Value], Sequence[Fault]] | None = None
    slow: str = ""


def _later(module: str, function: str = "apply") -> Callable[..., Any]:
    """A function of a section's module, which is imported when it is first called.

    Few machines have all sections, and on the way to the first job each import counts.
    """

    def call(*values: Any) -> Any:
        return getattr(import_module(f".{module}", __package__), function)(*values)

    return call


KINDS: tuple[Kind, ...] = (
    Kind("accounts", _later("accounts"), faults=_later("accounts", "faults")),
    Kind("shares", _later("shares"), slow="shares", faults=_later("shares", "faults")),
    Kind("packages", _later("packages"), slow="names"),
    Kind("setup", _later("setup"), needs=("accounts", "shares", "packages"), slow="script"),
    Kind("containers", _later("containers"), needs=("packages", "setup"), slow="line"),
    Kind("job_env", _later("job_env")),
    Kind("ssh_key", _later("ssh_key")),
)


@dataclass
class _Held:
    """A section that the head has sent: its value, and how far it is. `once`: it was applied since the agent began."""

    digest: str
    value: Value
    state: str = WORKING
    detail: str = ""
    final: bool = False
    once: bool = False
    failures: int = 0
    faults: Sequence[Fault] = field(default_factory=list)


class Sections:
    """Holds and applies them.

    Args:
        node: this machine.
        kinds: those that are known.
        quiet_failures: this number of failures in a row is reported as work that goes on.
    """

    def __init__(self, node: Node, kinds: Sequence[Kind] = KINDS, quiet_failures: int = QUIET_FAILURES) -> None:
        self._node = node
        self._quiet_failures = quiet_failures
        self._kinds = {kind.name: kind for kind in kinds}
        self._changed = threading.Condition()
        self._looking = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._moved: Callable[[], None] = lambda: None
        self._quick = False
        self.version = 0
        """Grows with each change of what `report` and `faults` say."""

    def start(self, moved: Callable[[], None], quick: bool = False) -> None:
        """Apply what is on disk, and from now on what the head sends.

        Args:
            moved: called, without the lock, when there is something new to report.
            quick: leave those that may take minutes.
        """
        self._moved = moved
        self._quick = quick
        self.load()
        for kind in self._kinds.values():
            threading.Thread(target=self._work, args=(kind,), name=f"section {kind.name}", daemon=True).start()
        threading.Thread(target=self._watch, name="faults of sections", daemon=True).start()

    def load(self) -> None:
        """Take what is on disk."""
        for name in self._kinds:
            saved = read_json(self._file(name))
            if name not in self._held and _usable(saved):
                self._held[name] = _Held(saved["digest"], saved["value"])

    def put(self, name: str, digest: str, value: Value) -> None:
        """Take a section from the head. Its thread applies it.

        Raises:
            NotPossible: this agent does not know it.
            OSError: it cannot be saved.
        """
        if name not in self._kinds or not _usable({"digest": digest, "value": value}):
            raise NotPossible(f"this agent does not know the section {name[:40]!r}", "rent the machine again")
        write_atomic(self._file(name), json.dumps({"digest": digest, "value": value}).encode(), 0o600)
        with self._changed:
            held = self._held.get(name)
            if held is None or held.digest != digest:
                once, faults = (held.once, held.faults) if held is not None else (False, [])
                self._held[name] = _Held(digest, value, once=once, faults=faults)
                self.version += 1
                self._changed.notify_all()

    def take(self, sections: object) -> None:
        """Take the sections of the head's answer to the join; an older head sends none, a newer one may send more."""
        with self._changed:  # so that none begins before one that it needs is known
            for name, one in sections.items() if isinstance(sections, dict) else ():
                if name in self._kinds and isinstance(one, dict) and _usable(one):
                    self.put(name, one["digest"], one["value"])

    def report(self) -> dict[str, dict[str, Any]]:
        """How far each section is, for the head."""
        with self._changed:
            return {
                name: {"digest": one.digest, "state": one.state, "detail": one.detail, "final": one.final}
                for name, one in self._held.items()
            }

    def faults(self) -> list[dict[str, str]]:
        """What the sections find wrong, for the head."""
        with self._changed:
            found = [
                {"section": name, "code": fault.code, "detail": " ".join(fault.detail.split())[:DETAIL_CHARS_MAX]}
                for name, one in self._held.items() for fault in one.faults
            ]  # fmt: skip
        return found[:FAULTS_MAX]

    def takes_long(self) -> bool:
        """Whether a section may take minutes."""
        with self._changed:
            return any(_slow(self._kinds[name], one) for name, one in self._held.items())

    def lacking(self) -> str:
        """What was not applied since the agent began, for people; "" when slurmd may start."""
        with self._changed:
            return ", ".join(f"{name}: {one.detail or one.state}" for name, one in self._held.items() if not one.once)

    def _file(self, name: str) -> Path:
        return self._node.paths.sections / f"{name}.json"

    def _work(self, kind: Kind) -> None:
        """Apply one section whenever it has changed, and again after a failure."""
        again = Backoff(AGAIN_FIRST_S, AGAIN_MAX_S)
        while True:
            with self._changed:
                held = self._due(kind)
                while held is None:
                    self._changed.wait()
                    held = self._due(kind)
            self._try(kind, held)
            if held.state == APPLIED:
                again.reset()
            else:
                self._pause(kind, held, again.next_s())

    def _due(self, kind: Kind) -> _Held | None:
        """What is to be applied now; None when nothing is, or it waits for others."""
        held = self._held.get(kind.name)
        if held is None or held.state == APPLIED or held.final or (self._quick and _slow(kind, held)):
            return None
        missing = [name for name in kind.needs if name in self._held and not self._held[name].once]
        if missing:
            held.detail = f"waits for {', '.join(missing)}"
            return None
        return held

    def _try(self, kind: Kind, held: _Held) -> None:
        """Apply it once."""
        try:
            kind.apply(self._node, held.value, lambda text: self._say(held, text))
        except Hopeless as error:
            self._end(kind, held, FAILED, str(error), final=True)
        except (NodeError, OSError) as error:
            held.failures += 1
            quiet = held.failures <= self._quiet_failures
            self._end(kind, held, WORKING if quiet else FAILED, f"tries again: {error}" if quiet else str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._end(kind, held, FAILED, f"its value cannot be used ({type(error).__name__}: {error})")
        else:
            held.failures = 0
            self._look(kind, held)  # what was found wrong while it was applied need not hold any more
            self._end(kind, held, APPLIED, "")

    def _pause(self, kind: Kind, held: _Held, pause_s: float) -> None:
        """Wait for a while, or until the head sends another value."""
        deadline = time.monotonic() + pause_s
        with self._changed:
            while self._held.get(kind.name) is held and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())

    def _say(self, held: _Held, text: str) -> None:
        with self._changed:
            if held.state != WORKING:
                return
            held.detail = " ".join(text.split())[-DETAIL_CHARS_MAX:]
            self.version += 1
        self._moved()

    def _end(self, kind: Kind, held: _Held, state: str, text: str, final: bool = False) -> None:
        detail = " ".join(text.split())[-DETAIL_CHARS_MAX:]
        with self._changed:
            news = (held.state, held.detail, held.final) != (state, detail, final)
            held.state, held.detail, held.final = state, detail, final
            held.once |= state == APPLIED
            self.version += news
            self._changed.notify_all()
        if news:
            say(f"{kind.name} is {state}{f': {detail}' if detail else ''}", urgent=state == FAILED)
            self._moved()

    def _watch(self) -> None:
        """Look for faults of what is applied, all few seconds."""
        pause = threading.Event()
        while not pause.wait(FAULTS_EVERY_S):
            self.look()

    def look(self) -> None:
        """Look for faults once. A look that fails itself leaves those that were known."""
        for kind in self._kinds.values():
            held = self._held.get(kind.name)
            if held is not None:
                self._look(kind, held)

    def _look(self, kind: Kind, held: _Held) -> None:
        if kind.faults is None:
            return
        with self._looking:  # one after another: the last word is that of the look which began last
            try:
                found = list(kind.faults(self._node, held.value))
            except (NodeError, OSError) as error:
                say(f"{kind.name} cannot be looked at: {error}")
                return
            with self._changed:
                news = list(held.faults) != found
                held.faults = found
                if held.state == APPLIED and any(fault.again for fault in found):
                    held.state = WORKING
                    news = True
                    self._changed.notify_all()
                self.version += news
        if news:
            self._moved()


def _slow(kind: Kind, held: _Held) -> bool:
    return bool(kind.slow and held.value.get(kind.slow))


def _usable(one: dict[str, Any]) -> bool:
    digest = one.get("digest")
    return isinstance(digest, str) and bool(_DIGEST.match(digest)) and isinstance(one.get("value"), dict)
