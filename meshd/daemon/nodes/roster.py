"""Which slot has which tailnet address, as every node and the head must know it.

The nodes' names on the head are kept in /etc/hosts by a root unit, which meshd asks by a file. slurmctld looks up the
address of everything that connects to it, 24.11 and newer at each connection, one after the other. Where no name server
knows the tailnet's addresses each lookup costs a question, and where it does not even say so, 10 s in which slurmctld
answers nobody.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.agents import AgentQueues
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.reporting import Check, ok, warn
from meshd.model.machine import IN_SLURM
from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.clock import Clock
from meshd.runtime.hostsfile import read_block, with_block
from meshd.store.journal import Journal
from meshd.tailnet.headhosts import HOSTS, REQUEST, fits
from meshd.tailnet.watcher import TailnetWatcher


class Roster(Controller):
    """Keeps the agents' rosters, and the head's.

    Args:
        journal: the machines.
        agents: the nodes' agents, which keep the roster.
        head: keeps the nodes' names on the head; the head's own name is left to its administrator.
        tailnet: knows the head's address.
        clock: time.
    """

    name = "roster"

    def __init__(
        self, journal: Journal, agents: AgentQueues, head: HeadNames, tailnet: TailnetWatcher, clock: Clock
    ) -> None:
        super().__init__(clock)
        self._journal = journal
        self._agents = agents
        self._head = head
        self._tailnet = tailnet
        self._told = (-1, "")
        self._slots: dict[str, str] = {}

    async def reconcile(self) -> None:
        """Tell what is new. It is woken after each tick."""
        self.look()

    def checks(self) -> Iterable[Check]:
        """The names on the head."""
        yield Check(CheckName.NODE_NAMES, self.check)

    def look(self) -> None:
        """Tell what is new; only a change of a record or of the head's address can be. The head's file is looked at."""
        own = self._tailnet.head_tailnet_ip
        if self._told != (self._journal.revision, own):
            self._told = self._journal.revision, own
            machines = self._journal.machines()
            joined = [m for m in machines if m.facts is not None and m.phase in IN_SLURM]
            self._slots = {m.slot: m.tailnet_ip for m in joined if not m.left_slurm}
            head = {socket.gethostname().split(".")[0]: own} if own else {}
            roster = dict(sorted({**self._slots, **head}.items()))
            self._agents.keep(roster, {m.name for m in machines}, {m.name for m in joined})
        self._head.keep(self._slots)

    async def check(self) -> CheckRow:
        """For `meshctl doctor`: the names on the head."""
        return await self._head.check(self._tailnet.head_tailnet_ip)


log = structlog.get_logger(__name__)

AGAIN_S = 30.0
"""After this long without success the unit is asked again."""
SERVED_WITHIN_S = 10.0
SLOW_S = 1.0
LOOKUP_MAX_S = 5.0
NAME = CheckName.NODE_NAMES

Lookup = Callable[[str], str]


def look_up(address: str) -> str:
    """The name of an address, as slurmctld asks for it; the address itself when it has none."""
    return socket.getnameinfo((address, 0), 0)[0]


class HeadNames:
    """Compares /etc/hosts with what it should say, and asks for what is lacking.

    Args:
        directory: meshd's runtime directory, where requests are laid.
        live: the settings: with `slurm.head_hosts` off meshd's block is taken out of the file.
        clock: for asking again.
        hosts: the file.
        look_up: for the check.
    """

    def __init__(
        self, directory: Path, live: LiveSettings, clock: Clock, hosts: Path = HOSTS, look_up: Lookup = look_up
    ) -> None:
        self._request = directory / REQUEST
        self._live, self._clock, self._hosts, self._look_up = live, clock, hosts, look_up
        self._given: tuple[Mapping[str, str], bool] = ({}, False)
        self._names: dict[str, str] = {}
        self._agreed: tuple[object, ...] | None = None
        self._asked: dict[str, str] | None = None
        self._asked_s = self._lacking_since_s = 0.0
        self._error = ""

    def keep(self, slots: Mapping[str, str]) -> None:
        """See that the file has these names; cheap when it has. Never raises: the check tells.

        Args:
            slots: name to address; the same mapping as long as nothing changes.
        """
        wanted = self._live.settings.slurm.head_hosts
        if self._given[0] is not slots or self._given[1] != wanted:
            self._given = slots, wanted
            self._names = {name: to for name, to in slots.items() if fits(name, to)} if wanted else {}
        try:
            found = self._hosts.stat()
            state = (found.st_ino, found.st_mtime_ns, found.st_size, self._names)
            if state == self._agreed:
                return
            text = self._hosts.read_text("utf-8", "surrogateescape")
            if with_block(text, self._names) == text:
                self._agreed, self._asked, self._error = state, None, ""
                return
            self._ask()
        except OSError as error:
            self._fail(f"{error.filename}: {error.strerror}")

    def _ask(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._asked is None:
            self._lacking_since_s = now_s
        if self._asked == self._names and now_s - self._asked_s < AGAIN_S:
            return
        self._asked, self._asked_s = self._names, now_s
        write_atomic(self._request, json.dumps({"names": self._names}).encode(), mode=0o600)

    def _fail(self, text: str) -> None:
        if text != self._error:
            log.warning("head_names_not_kept", reason=text)
        self._error = text

    async def check(self, own_address: str) -> CheckRow:
        """For `meshctl doctor`: are the names there, and how long does slurmctld wait for those of its callers?

        Args:
            own_address: the head's on the tailnet; "" when it is not known now.
        """
        if self._error:
            cure = f"meshd must be able to read {self._hosts} and to write {self._request}"
            return warn(NAME, ProblemCode.HEAD_NAMES_NOT_KEPT, self._error, cure)
        if self._asked is not None and self._clock.monotonic_s() - self._lacking_since_s > SERVED_WITHIN_S:
            text = f"{self._hosts} lacks the names of nodes, and meshd-hosts.path does not put them there"
            cure = "`systemctl enable --now meshd-hosts.path`; when it runs: `journalctl -u meshd-hosts`"
            return warn(NAME, ProblemCode.HEAD_NAMES_NOT_KEPT, text, cure)
        for address in (own_address, *sorted(self._names.values())[:1]):
            if address and (slow := await self._slow(address)):
                return slow
        if not self._live.settings.slurm.head_hosts:
            return ok(NAME, f"slurm.head_hosts is off: {self._hosts} is left alone")
        kept = await asyncio.to_thread(self._hosts.read_text, "utf-8", "surrogateescape")
        return ok(NAME, f"{len(read_block(kept))} in {self._hosts}")

    async def _slow(self, address: str) -> CheckRow | None:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(LOOKUP_MAX_S):
                await asyncio.to_thread(self._look_up, address)
        except TimeoutError:
            pass  # the time that it took is reported
        except OSError:
            return None  # no name at once is as good as one
        took_s = time.monotonic() - began_s
        if took_s < SLOW_S:
            return None
        text = (
            f"a name for {address} takes {took_s:.0f} s or more to look up: slurmctld waits for it at each connection"
        )
        cure = f"put `{address} NAME` into {self._hosts}, or repair the name servers in /etc/resolv.conf"
        return warn(NAME, ProblemCode.HEAD_NAMES_SLOW, text, cure)
