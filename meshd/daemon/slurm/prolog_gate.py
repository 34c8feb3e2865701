"""Lets a job start as soon as its nodes are up and have its user: ends its PrologSlurmctld, which waits at a FIFO.

slurmctld itself looks only every 30 s whether the nodes of a job are up. What waits is seen by the FIFOs that are
there, so a restart of meshd or slurmctld meanwhile ends well. What would wait sees by a file that meshd touches whether
meshd lives or will soon be back, and how long it may wait.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Protocol

import structlog

from meshd.codes import EventKind
from meshd.daemon.agents import AgentQueues
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.source import Observed
from meshd.errors import SlurmError
from meshd.model.ids import slot_index
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import Fresh, SlurmView
from meshd.plan.job_start import Starts, WaitingProlog, all_up, nodes_of, user_of, why_start
from meshd.runtime.clock import Clock
from meshd.slurm.show import hostlist
from meshd.store.journal import Journal

log = structlog.get_logger(__name__)

DIRECTORY = "prolog"
ALLOWED = "prolog-limit-s"
"""The file: how many seconds a prolog may wait. A prolog gives meshd up when it has not been touched for 60 s."""
TOUCH_S = 5.0
WAITING_MAX = 10_000
LOOK_S = 0.1
SILENT_S = 30.0
"""A prolog tells every 5 s that it waits. One that was killed leaves its FIFO."""
LIMIT_S = 3600.0
"""ResumeTimeout: then Slurm gives the job's nodes up."""
TIMEOUT_MARGIN_S = 10.0
ASK_TIMEOUT_AFTER_S = 5.0
"""A job on nodes that are up must not wait for an answer of slurmctld."""
TIMEOUT_KEPT_S = 60.0
TOLD_AGAIN_S = 600.0
"""Seconds between two events about one user who is missing on one machine: each task of an array is a job."""
TOLD_MAX = 1000

_NAME = re.compile(r"(\d{1,10}(?:_\d{1,10})?)\.\d{1,10}")
_UID = re.compile(r"\d{1,10}")
_LONG_IN_SLURM = frozenset({Phase.READY, Phase.DRAINING})


class PrologSlurm(Protocol):
    """Slurm's setting that bounds a prolog."""

    async def prolog_timeout_s(self) -> float | None:
        """See SlurmClient."""
        ...


@dataclass(frozen=True, slots=True)
class JobUsers:
    """What is known of the users of jobs.

    Attributes:
        uid_of: the number of a user of the cluster by name; None for one who is none.
        read_for: whether what is known of a number is as new as a job; see HeadAccounts.
        has: whether a machine has the user with a number; True where no user of the cluster has it.
    """

    uid_of: Callable[[str], int | None]
    read_for: Callable[[int, float], bool]
    has: Callable[[str, int], bool]


@dataclass(slots=True)
class _Gate:
    since_s: float
    heard_s: float
    nodes: tuple[str, ...] = ()
    uid: int | None = None
    up_since_s: float | None = None
    starts: Starts | None = None
    hurried: bool = False


class PrologGate(Controller):
    """Looks at what waits, and ends what may.

    Args:
        directory: meshd's runtime directory.
        live: the settings, for the names of slots.
        journal: the machines.
        agents: know which names their machines have.
        slurm: what Slurm said last.
        hurry: has Slurm read now.
        client: asks slurmctld how long a prolog may take.
        clock: time.
        users: what is known of the users of jobs.
        user_id: who owns the FIFOs: SlurmUser, as which meshd runs too.
    """

    name = "prolog_gate"

    def __init__(
        self,
        directory: Path,
        live: LiveSettings,
        journal: Journal,
        agents: AgentQueues,
        slurm: Observed[SlurmView],
        hurry: Callable[[], None],
        client: PrologSlurm,
        clock: Clock,
        users: JobUsers,
        user_id: int | None = None,
    ) -> None:
        super().__init__(clock)
        self._user_id = os.getuid() if user_id is None else user_id
        self._directory = directory / DIRECTORY
        self._live, self._journal, self._agents = live, journal, agents
        self._slurm, self._hurry, self._client, self._users = slurm, hurry, client, users
        self._gates: dict[str, _Gate] = {}
        self._limit_s = LIMIT_S
        self._limit_asked_s: float | None = None
        self._touched_s: float | None = None
        self._told_s: dict[tuple[str, int], float] = {}

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._gates)

    def heard(self, lines: Sequence[str]) -> None:
        """Take what prologs told: `JOB.PID NODES UID`, every few seconds. A line of another form counts for nothing."""
        for line in lines:
            name, nodes, uid = [*line.split(" ", 2), "", ""][:3]
            if _NAME.fullmatch(name) and (name in self._gates or len(self._gates) < WAITING_MAX):
                now_s = self._clock.monotonic_s()
                gate = self._gates.setdefault(name, _Gate(now_s, now_s))
                gate.heard_s = now_s
                if gate.uid is None and _UID.fullmatch(uid):
                    gate.uid = int(uid)
                with suppress(SlurmError):
                    gate.nodes = gate.nodes or (hostlist(nodes) if nodes else ())
        self.wake()

    async def reconcile(self) -> float:
        """End the prologs whose jobs may start. Raises SlurmError where the directory cannot be used."""
        self._look_at_directory()
        if self._gates:
            self._try_all()
        await self._read_limit()
        self._touch()
        return LOOK_S if self._gates else TOUCH_S

    def _try_all(self) -> None:
        machines: dict[str, Machine] = {
            one.slot: one for one in self._journal.machines() if one.phase in IN_SLURM and not one.left_slurm
        }
        new = False
        for name, gate in list(self._gates.items()):
            new |= self._try(name, gate, machines)
        if new:
            self._hurry()

    def _touch(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._touched_s is not None and now_s - self._touched_s < TOUCH_S:
            return
        path, new = self._directory.with_name(ALLOWED), self._directory.with_name(f".{ALLOWED}")
        try:
            new.write_text(f"{self._limit_s:.0f}\n")
            new.replace(path)
        except OSError as error:
            raise SlurmError(f"{path} cannot be written: {error.strerror}") from error
        self._touched_s = now_s

    def _look_at_directory(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            with os.scandir(self._directory) as entries:
                gates = (entry.name for entry in entries if _is_gate(entry, self._user_id))
                there = set(islice(gates, WAITING_MAX))
        except OSError as error:
            raise SlurmError(f"{self._directory} cannot be used: {error.strerror}") from error
        now_s = self._clock.monotonic_s()
        for name in there - self._gates.keys():
            self._gates[name] = _Gate(now_s, now_s)
        for name in self._gates.keys() - there:
            del self._gates[name]
        for name, gate in list(self._gates.items()):
            if now_s - gate.heard_s >= SILENT_S:
                self._remove(name)

    def _try(self, name: str, gate: _Gate, machines: Mapping[str, Machine]) -> bool:
        """Let one start if it may; True when Slurm should be read for it."""
        match = _NAME.fullmatch(name)
        assert match
        now, now_s, seen = self._clock.now(), self._clock.monotonic_s(), self._slurm.current
        since, up_since_s = now - timedelta(seconds=now_s - gate.since_s), gate.up_since_s
        up_since = None if up_since_s is None else now - timedelta(seconds=now_s - up_since_s)
        waiting = WaitingProlog(match[1], gate.nodes, since, up_since, timedelta(seconds=self._limit_s))

        def is_ready(slot: str) -> bool:
            return slot in machines and machines[slot].phase in _LONG_IN_SLURM

        def know_each_other(slots: Sequence[str]) -> bool:
            named = {slot for slot in slots if slot in machines}
            return all(self._agents.knows(machines[slot].name, named - {slot}) for slot in named)

        def have_user(slots: Sequence[str]) -> bool:
            uid = self._uid(waiting, gate)
            if uid is None:
                return True
            return self._users.read_for(uid, gate.since_s) and not self._lacking(uid, slots, machines)

        if gate.starts is None:
            gate.starts = why_start(
                waiting, seen, now, is_slot=self._is_slot, is_ready=is_ready, know_each_other=know_each_other,
                have_user=have_user,
            )  # fmt: skip
        slots = [node for node in nodes_of(waiting, seen) if self._is_slot(node)]
        if gate.starts is None:
            if gate.up_since_s is None and slots and isinstance(seen, Fresh) and all_up(slots, seen.value):
                gate.up_since_s = now_s
            hurry, gate.hurried = not gate.hurried, True
            return hurry
        if self._open(name):
            log.debug("job_starts", job=waiting.job, why=gate.starts, waited_s=now_s - gate.since_s)
            uid = self._uid(waiting, gate)
            if gate.starts in (Starts.USER_LATE, Starts.LIMIT) and uid is not None:
                self._tell(waiting.job, user_of(waiting, seen), uid, self._lacking(uid, slots, machines))
        elif gate.starts is Starts.GONE:
            self._remove(name)  # nobody is there: slurmctld kills the prolog of a job that is cancelled
        return False

    def _uid(self, waiting: WaitingProlog, gate: _Gate) -> int | None:
        """The number of the job's user, as its prolog told it, or by the name that Slurm shows; None: not known."""
        if gate.uid is not None:
            return gate.uid
        name = user_of(waiting, self._slurm.current)
        return self._users.uid_of(name) if name else None

    def _lacking(self, uid: int, slots: Sequence[str], machines: Mapping[str, Machine]) -> list[Machine]:
        """The machines of these slots that do not have the user."""
        there = [machines[slot] for slot in slots if slot in machines]
        return [machine for machine in there if not self._users.has(machine.name, uid)]

    def _tell(self, job: str, user: str, uid: int, lacking: Sequence[Machine]) -> None:
        """Write down which machines a job starts on although its user is not there."""
        now_s = self._clock.monotonic_s()
        self._told_s = {key: at_s for key, at_s in self._told_s.items() if now_s - at_s < TOLD_AGAIN_S}
        for machine in lacking:
            if (machine.name, uid) not in self._told_s and len(self._told_s) < TOLD_MAX:
                self._told_s[machine.name, uid] = now_s
                text = (
                    f"job {job} starts, and {machine.slot} does not have the account of its user {user or uid} as on "
                    f"the head: `meshctl logs {machine.slot}` says why"
                )
                self._journal.event(self._clock.now(), EventKind.ACCOUNTS, text, machine.name)

    def _open(self, name: str) -> bool:
        """Open the other side; False while the prolog is just between two looks."""
        path = self._directory / name
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False  # it comes again, or is silent from now on
        self._remove(name)
        os.close(fd)
        return True

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            (self._directory / name).unlink()
        self._gates.pop(name, None)

    def _is_slot(self, node: str) -> bool:
        return any(slot_index(pool, node) is not None for pool in self._live.settings.pools)

    async def _read_limit(self) -> None:
        """Read how long slurmctld lets a prolog run, while none has just come."""
        now_s = self._clock.monotonic_s()
        if self._limit_asked_s is not None and now_s - self._limit_asked_s < TIMEOUT_KEPT_S:
            return
        waited_s = [now_s - gate.since_s for gate in self._gates.values()]
        if waited_s and max(waited_s) < ASK_TIMEOUT_AFTER_S:
            return
        self._limit_asked_s = now_s
        with suppress(SlurmError):
            timeout_s = await self._client.prolog_timeout_s()
            self._limit_s = LIMIT_S if timeout_s is None else min(LIMIT_S, max(0.0, timeout_s - TIMEOUT_MARGIN_S))


def _is_gate(entry: os.DirEntry[str], user_id: int) -> bool:
    """A FIFO of SlurmUser, with such a name."""
    if not _NAME.fullmatch(entry.name):
        return False
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISFIFO(found.st_mode) and found.st_uid == user_id
