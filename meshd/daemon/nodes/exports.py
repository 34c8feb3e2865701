"""What the head exports to the nodes: kept in /etc/exports.d by a root unit, which meshd asks by a file.

Each node that has joined is exported each share of the head, by its own address. The lines go when it leaves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.reporting import Check, ok, problem, warn
from meshd.model.machine import IN_SLURM, Machine, Phase, UnfitReason
from meshd.model.node_settings import SectionState
from meshd.plan.node_settings import FAULTS
from meshd.plan.provider_capabilities import is_pod
from meshd.plan.shares import Export, Share, exports, exports_text, in_force, node_address_fault
from meshd.runtime.atomicfile import write_atomic
from meshd.runtime.clock import Clock
from meshd.shares.headexports import ETAB, EXPORTS, REQUEST
from meshd.store.journal import Journal
from meshd.tailnet.watcher import TailnetWatcher

log = structlog.get_logger(__name__)

AGAIN_S = 30.0
"""After this long without success the unit is asked again."""
SERVED_WITHIN_S = 10.0
CONNECT_S = 5.0
NFS_PORT = 2049
SECTION = "shares"
NAME = CheckName.SHARES
_SET_UP = "`sudo meshctl init --share`"


class HeadExports(Controller):
    """Compares meshd's file of exports with what it should say, and asks for what is lacking.

    Args:
        directory: meshd's runtime directory, where requests are laid.
        live: the settings.
        journal: the machines.
        reports: what the agents say of their shares.
        tailnet: knows the head's address.
        clock: for asking again.
        pod_providers: the providers that rent pods.
        file: meshd's file of exports.
        etab: what is in force.
    """

    name = "exports"

    def __init__(
        self,
        directory: Path,
        live: LiveSettings,
        journal: Journal,
        reports: NodeReports,
        tailnet: TailnetWatcher,
        clock: Clock,
        pod_providers: Mapping[str, str],
        file: Path = EXPORTS,
        etab: Path = ETAB,
    ) -> None:
        super().__init__(clock)
        self._request = directory / REQUEST
        self._live, self._journal, self._reports, self._tailnet = live, journal, reports, tailnet
        self._pod_providers = pod_providers
        self._file, self._etab = file, etab
        self._made_from: tuple[object, ...] = ()
        self._wanted: tuple[Export, ...] = ()
        self._addresses: tuple[str, ...] = ()
        self._agreed: tuple[object, ...] | None = None
        self._asked: tuple[Export, ...] | None = None
        self._asked_s = self._lacking_since_s = 0.0
        self._error = ""

    async def reconcile(self) -> None:
        """Look again. It is woken after each tick."""
        self.look()

    def look(self) -> None:
        """See that each node is exported what it should be; cheap when it is. Never raises: the check tells."""
        made_from = (self._journal.revision, self._live.settings)
        if made_from != self._made_from:
            self._made_from = made_from
            self._addresses = tuple(m.tailnet_ip for m in self._journal.machines() if self._mounts(m))
            wanted = exports(self._live.settings.shares, self._addresses)
            self._wanted = self._wanted if wanted == self._wanted else wanted
        try:
            state = (_state(self._file), _state(self._etab), self._wanted)
            if state == self._agreed:
                return
            if self._is_so():
                self._agreed, self._asked, self._error = state, None, ""
                return
            self._ask()
        except OSError as error:
            self._fail(f"{error.filename}: {error.strerror}")

    def _mounts(self, machine: Machine) -> bool:
        joined = machine.facts is not None and machine.phase in IN_SLURM and not machine.left_slurm
        return joined and not is_pod(machine, self._pod_providers) and not node_address_fault(machine.tailnet_ip)

    def _is_so(self) -> bool:
        """Whether the file has exactly what it should, and the lines are in force."""
        text = self._file.read_text("ascii", "replace") if self._file.exists() else ""
        if text != (exports_text(self._wanted) if self._wanted else ""):
            return False
        pairs = {(one.path, one.address) for one in self._wanted}
        there = in_force(self._etab.read_text("utf-8", "replace")) if pairs and self._etab.exists() else frozenset()
        return pairs <= there

    def _ask(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._asked is None:
            self._lacking_since_s = now_s
        if self._asked == self._wanted and now_s - self._asked_s < AGAIN_S:
            return
        self._asked, self._asked_s = self._wanted, now_s
        write_atomic(self._request, json.dumps({"addresses": sorted(self._addresses)}).encode(), mode=0o600)

    def _fail(self, text: str) -> None:
        if text != self._error:
            log.warning("exports_not_kept", reason=text)
        self._error = text

    def _lacking(self) -> str:
        """Why nodes cannot mount, for people; "" when they can, or the unit may still be at it."""
        if self._error:
            return self._error
        late = self._asked is not None and self._clock.monotonic_s() - self._lacking_since_s > SERVED_WITHIN_S
        return f"the head does not export its shares to nodes: {self._file} is not as meshd asks" if late else ""

    def problems(self) -> Iterable[ProblemView]:
        """Nodes are not exported what they should mount."""
        if lacking := self._lacking():
            yield problem(ProblemCode.EXPORTS_NOT_KEPT, "error", lacking, _EXPORTS_CURE)

    def checks(self) -> Iterable[Check]:
        """The shares."""
        yield Check(NAME, self.check)

    async def check(self) -> CheckRow:
        """For `meshctl doctor`: the server, the exports, and what the nodes say."""
        shares = self._live.settings.shares
        if not shares:
            return ok(NAME, f"no [share] in the settings: users' files stay on the head ({_SET_UP} sets one up)")
        own = [share for share in shares if not share.server]
        if lacking := self._lacking():
            return warn(NAME, ProblemCode.EXPORTS_NOT_KEPT, lacking, _EXPORTS_CURE)
        if own and (row := await self._server(own)):
            return row
        return self._nodes(shares)

    async def _server(self, own: Sequence[Share]) -> CheckRow | None:
        """What is wrong with the head's server; None when nothing is."""
        for share in own:
            if await asyncio.to_thread(_missing, Path(share.at_server)):
                text = f"share {share.name}: {share.at_server} is no directory on the head"
                return warn(NAME, ProblemCode.SHARE_SERVER_DOWN, text, f"make it, or {_SET_UP}")
        address = self._tailnet.head_tailnet_ip
        if address and not await _answers(address):
            text = f"the head's NFS server does not answer at {address}, port {NFS_PORT}"
            cure = f"{_SET_UP} sets it up; `systemctl status nfs-server`; a firewall must let the tailnet in"
            return warn(NAME, ProblemCode.SHARE_SERVER_DOWN, text, cure)
        if await _answers("127.0.0.1"):
            text = "the head's NFS server listens on all addresses, not on the tailnet's alone"
            cure = "set host= in /etc/nfs.conf.d, then `systemctl restart nfs-server`; or close TCP 2049 by a firewall"
            return warn(NAME, ProblemCode.SHARE_SERVER_OPEN, text, cure)
        return None

    def _nodes(self, shares: Sequence[Share]) -> CheckRow:
        """What the nodes say of their shares."""
        there, lost = 0, []
        machines = [m for m in self._journal.machines() if m.phase is Phase.READY and self._mounts(m)]
        for machine in machines:
            seen = _seen(machine, self._reports)
            there += seen.mounted and not seen.fault
            if seen.fault:
                lost.append(f"{machine.slot or machine.name}: {seen.fault}")
        names = ", ".join(f"{share.name} ({share.server or 'the head'}:{share.at_server})" for share in shares)
        if lost:
            text = f"{len(lost)} nodes do not reach their shares: {'; '.join(lost[:3])}"
            return warn(NAME, ProblemCode.SHARE_LOST, text, "see that the server answers them, and their paths to it")
        return ok(NAME, f"{names}; mounted on {there} of {len(machines)} nodes")


_EXPORTS_CURE = (
    f"{_SET_UP}; `systemctl enable --now meshd-exports.path`; when both are done: `journalctl -u meshd-exports`"
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a node says of its shares: whether it has them, and what is wrong."""

    mounted: bool
    fault: str


def _seen(machine: Machine, reports: NodeReports) -> _Seen:
    report = reports.current.get(machine.name)
    section = (report.sections or {}).get(SECTION) if report else None
    faults = [one.detail for one in (report.faults if report else ()) if FAULTS.get(one.code) is UnfitReason.SHARE_LOST]
    return _Seen(section is not None and section.state is SectionState.APPLIED, "; ".join(faults))


def _state(file: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None when it is missing."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _missing(directory: Path) -> bool:
    """Whether this is no directory. meshd's unit hides home directories from it: of what is there it knows nothing."""
    try:
        return not directory.is_dir()
    except PermissionError:
        return False


async def _answers(address: str) -> bool:
    """Whether something accepts connections on NFS's port there."""
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address, NFS_PORT)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
