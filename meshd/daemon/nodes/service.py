"""What is done for node agents: the NodeHandlers of the node API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

import structlog
from pydantic import SecretStr

from meshd.api.node_commands import Command
from meshd.api.node_schema import JoinAnswer, Needs, PollIn, key_b64
from meshd.bootstrap.tokens import JoinTicket, NodeCaller, check_instance
from meshd.codes import EventKind, JoinCode
from meshd.daemon.agents import AgentQueues
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.cooldowns import Cooldowns
from meshd.daemon.machines.node_steps import NodeSteps
from meshd.daemon.munge_key.controller import MungeKeyController
from meshd.daemon.nodes import spot_notices
from meshd.daemon.nodes.admission import accept_join, check_join
from meshd.daemon.nodes.devices import MachineDevices
from meshd.daemon.nodes.join_token_watch import JoinTokenWatch
from meshd.daemon.nodes.node_settings import NodeSettings, problem_of
from meshd.daemon.nodes.token_renewal import NodeTokenController
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.observe.source import Readable
from meshd.errors import JoinRefused, MungeError, NotNow
from meshd.model.desired import Promise
from meshd.model.hardware import NodeFacts
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.observed import SlurmView, TailnetPeer, value_of
from meshd.munge.client import MungeClient
from meshd.munge.key import fingerprint
from meshd.obs.log import redact
from meshd.plan.admission import check_facts
from meshd.plan.provider_capabilities import lacking
from meshd.provider_api import Provider
from meshd.store.join_tokens import JoinTokens

log = structlog.get_logger(__name__)

SWITCH_WAIT_S = 5.0
"""How long a node that proves munge waits for the end of the change; its call ends after 15 s."""
MAY_JOIN = frozenset({Phase.LAUNCHING, Phase.BOOTING, Phase.JOINING}) | IN_SLURM
WAS_IN_SLURM = frozenset({Phase.TESTING, Phase.READY, Phase.DRAINING})
"""In these phases users may have, or had, jobs on the machine: its join token opens nothing."""


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What every node must know about the head.

    Attributes:
        conf_server: "ADDRESS:6817" on the tailnet.
        packages: what an image without Slurm needs.
    """

    cluster: str
    conf_server: str
    slurm_uid: int
    slurm_gid: int
    munge_uid: int
    munge_gid: int
    packages: tuple[str, ...]
    poll_hold_s: float


class Whois(Protocol):
    """Who has an address on the tailnet."""

    async def whois(self, address: str) -> TailnetPeer:
        """Raises TailnetError."""
        ...


class NodeService:
    """Answers the node agents. See meshd.api.node_handlers.NodeHandlers for what each method promises.

    Args:
        live: the settings.
        machine_store: the machines.
        tokens: join and node tokens.
        node_tokens: renews node tokens.
        refusals: remembers join tokens that were refused.
        agents: the agents' commands.
        reports: what the agents said last.
        devices: which tailnet device speaks for which machine.
        whois: who has an address on the tailnet.
        munge: the head's munge.
        munge_key: the munge key and its rotation.
        node_steps: gives back a machine that may not join.
        providers: the enabled ones.
        slurm: what Slurm said last.
        node_settings: what nodes are given beside munge and Slurm.
        agent_spoke: called with each machine whose agent polls.
        promises: what the slots of pools promise, where that is known.
        head: what nodes must know about the head; the server of the node API sets it, since it has the address.
    """

    def __init__(
        self,
        live: LiveSettings,
        machine_store: MachineStore,
        *,
        tokens: MachineTokens,
        node_tokens: NodeTokenController,
        refusals: JoinTokenWatch,
        agents: AgentQueues,
        reports: NodeReports,
        devices: MachineDevices,
        whois: Whois,
        munge: MungeClient,
        munge_key: MungeKeyController,
        node_steps: NodeSteps,
        providers: Mapping[str, Provider],
        slurm: Readable[SlurmView],
        node_settings: NodeSettings,
        agent_spoke: Callable[[str], None],
        promises: Callable[[], Mapping[str, Promise]] = lambda: {},
        head: HeadFacts | None = None,
    ) -> None:
        self._live = live
        self._machine_store = machine_store
        self._cooldowns = Cooldowns(machine_store, live)
        self._join_token_store = JoinTokens(machine_store.journal)
        self._tokens = tokens
        self._node_tokens = node_tokens
        self._refusals = refusals
        self._agents = agents
        self._reports = reports
        self._devices = devices
        self._whois = whois
        self._munge = munge
        self._munge_key = munge_key
        self._node_steps = node_steps
        self._providers = providers
        self._slurm = slurm
        self._node_settings = node_settings
        self._agent_spoke = agent_spoke
        self._promises = promises
        self._known_gangs: tuple[int, frozenset[str]] = (-1, frozenset())
        self.head = head

    async def whois(self, ip: str) -> TailnetPeer | None:
        """The device that has this address."""
        return await self._whois.whois(ip)

    async def machine_for_join(self, token_hash: str) -> JoinTicket | None:
        """The ticket of a machine that may still join."""
        name = self._tokens.whose_join(token_hash, self._node_tokens.generations())
        machine = self._machine_store.journal.machine(name) if name else None
        if machine is not None and not machine.gang:
            return self._ticket(machine, token_hash)
        gang = self._tokens.whose_gang(token_hash, self._gangs())
        return JoinTicket("", token_hash, self._machine_store.now(), gang=gang) if gang else None

    async def ticket_in_gang(self, ticket: JoinTicket, peer: TailnetPeer) -> JoinTicket:
        """The ticket of the gang's machine with this device's name."""
        machine = self._machine_store.journal.machine(peer.hostname)
        found = self._ticket(machine, ticket.token_hash) if machine and machine.gang == ticket.gang else None
        if found is None:
            raise JoinRefused(
                f"this token was made for the machines {ticket.gang}, and the caller is "
                f"{peer.hostname or 'without a name'}",
                "each machine of a gang calls itself as the cloud's metadata service says",
                code=JoinCode.OTHER_MACHINE,
            )
        return found

    def _ticket(self, machine: Machine, token_hash: str) -> JoinTicket | None:
        if machine.phase not in MAY_JOIN:
            return None
        return JoinTicket(
            machine=machine.name,
            token_hash=token_hash,
            expires_at=machine.created_at + timedelta(seconds=self._live.settings.timing.join_token_ttl_s),
            bound_to=self._join_token_store.device(machine.name),
            closed=self._closed(machine),
        )

    def _gangs(self) -> frozenset[str]:
        """The gangs of all machines that are alive; the same object while nothing has changed."""
        revision = self._machine_store.journal.revision
        if self._known_gangs[0] != revision:
            gangs = frozenset(m.gang for m in self._machine_store.journal.machines() if m.gang)
            kept = self._known_gangs[1] if self._known_gangs[1] == gangs else gangs
            self._known_gangs = (revision, kept)
        return self._known_gangs[1]

    def _closed(self, machine: Machine) -> bool:
        """A second look beside the journal's own word, so that a key can never go to a node with users on it."""
        served = machine.munge_ok or machine.slurmd_started or machine.slurmd_start_ordered_at is not None
        return served or machine.phase in WAS_IN_SLURM or self._join_token_store.closed(machine.name)

    async def join_refused(self, machine: str, peer: TailnetPeer, error: JoinRefused) -> None:
        """Remember it for people. One that was found again, and never was in Slurm, can only be replaced."""
        self._refusals.note(machine, error, self._machine_store.now())
        record = self._machine_store.get(machine)
        found_again = record.launch_attempts == 0 and not record.line_published
        if error.code == JoinCode.TOKEN_CLOSED and found_again and record.phase in {Phase.BOOTING, Phase.JOINING}:
            await self._node_steps.refuse(record, error)

    async def proved(self, caller: NodeCaller) -> None:
        """Close the machine's join token; a token that is new ends the one before."""
        self._node_tokens.proved(caller)
        self._join_token_store.close(caller.machine, "its node token was used", self._machine_store.now())

    async def check_device(self, machine: str, peer: TailnetPeer) -> None:
        """Refuse a device that is another machine's."""
        try:
            self._devices.check(machine, peer)
        except JoinRefused as error:
            if self._machine_store.get(machine).gang:  # another machine of the gang may have sent its token
                self._refusals.note(machine, error, self._machine_store.now())
            else:
                await self._refused(machine, error)
            raise
        record = self._machine_store.get(machine)
        if record.head_reached_at is not None:
            return
        if record.phase is Phase.LAUNCHING:  # it settles an unclear create call, so a crash must not lose it
            text = "it came to the head: a create call without a clear answer made it"
            self._machine_store.change(machine, EventKind.REACHED, text, head_reached_at=self._machine_store.now())
        elif record.phase in {Phase.BOOTING, Phase.JOINING}:
            self._machine_store.journal.note(replace(record, head_reached_at=self._machine_store.now()))

    async def trouble(self, machine: str, stage: str, text: str) -> None:
        """Keep it as the machine's problem, for people and for the reason of a failure."""
        record, problem = self._machine_store.get(machine), redact(f"{stage}: {text}")
        if problem != record.problem:
            self._machine_store.node_change(machine, EventKind.PROBLEM, problem, problem=problem)

    async def take_device(self, machine: str, peer: TailnetPeer) -> None:
        """Take the device that a machine came back with."""
        await self._devices.take(machine, peer)

    async def needs(self, machine: str) -> Needs:
        """What an image without Slurm must be given."""
        head = self._known_head()
        return Needs(
            packages=head.packages, slurm_uid=head.slurm_uid, slurm_gid=head.slurm_gid, munge_uid=head.munge_uid,
            munge_gid=head.munge_gid,
        )  # fmt: skip

    async def join(self, machine: str, peer: TailnetPeer, facts: NodeFacts) -> JoinAnswer:
        """Accept or refuse a machine."""
        record = self._machine_store.get(machine)
        if record.gang:
            self._check_instance(record, facts)
        await self._admit(record, peer, facts)
        bound = self._join_token_store.bind(machine, peer.id, self._machine_store.now())
        if bound != peer.id:
            raise JoinRefused(
                f"another device has joined as {machine}",
                "look for a second device with its name",
                code=JoinCode.OTHER_DEVICE,
            )
        if self._closed(record):
            raise JoinRefused(
                f"the join token of {machine} is used up", "the agent rejoins", code=JoinCode.TOKEN_CLOSED
            )
        accept_join(self._machine_store, record, peer, facts, self._live.settings.slurm.memory_fraction)
        return self._answer(record, peer, key_b64(self._munge_key.keys.for_joining().get_secret_value()))

    def _check_instance(self, record: Machine, facts: NodeFacts) -> None:
        try:
            check_instance(record.name, record.instance_id, facts.instance_id)
        except JoinRefused as error:
            if error.code is JoinCode.OTHER_INSTANCE:
                self._refusals.note(record.name, error, self._machine_store.now())
            raise

    async def rejoin(self, caller: NodeCaller, peer: TailnetPeer, facts: NodeFacts, munge_key: str) -> JoinAnswer:
        """Accept a machine again; it gets the munge key only when it has another one."""
        record = self._machine_store.get(caller.machine)
        await self._admit(record, peer, facts)
        if not caller.device_id:
            self._join_token_store.rebind(record.name, peer.id, self._machine_store.now())
        key = self._munge_key.keys.for_joining()
        accept_join(self._machine_store, record, peer, facts, self._live.settings.slurm.memory_fraction)
        has_it = fingerprint(key) == munge_key
        return self._answer(record, peer, None if has_it else key_b64(key.get_secret_value()))

    async def _admit(self, record: Machine, peer: TailnetPeer, facts: NodeFacts) -> None:
        try:
            check_join(record, peer, facts, self._live.settings.slurm.memory_fraction)
            check_facts(
                facts, gpus_rented=record.gpus, gpu_model=record.offer.gpu, slurmctld_version=self._slurm_version(),
                clock_skew_max_s=self._live.settings.timing.clock_skew_max_s,
                promise=None if record.phase in IN_SLURM else self._promises().get(record.pool),
            )  # fmt: skip
        except JoinRefused as error:
            await self._refused(record.name, error)
            raise

    def _known_head(self) -> HeadFacts:
        if self.head is None:
            raise NotNow("the head does not know its tailnet address yet")
        return self.head

    def _slurm_version(self) -> str:
        view = value_of(self._slurm.current)
        return view.version if view is not None else ""

    def _ends_itself(self, provider: str) -> bool:
        return provider in self._providers and self._providers[provider].capabilities.ends_itself

    def _answer(self, record: Machine, peer: TailnetPeer, munge_key: SecretStr | None) -> JoinAnswer:
        head = self._known_head()
        token = self._tokens.node_token(record.name, self._node_tokens.generation(record.name))
        return JoinAnswer(
            node_token=token, slot=record.slot, cluster=head.cluster,
            conf_server=head.conf_server, munge_key_b64=munge_key,
            slurm_uid=head.slurm_uid, slurm_gid=head.slurm_gid, munge_uid=head.munge_uid, munge_gid=head.munge_gid,
            roster={**self._agents.roster, record.slot: peer.tailnet_ip}, roster_version=self._agents.roster_version,
            poll_hold_s=head.poll_hold_s, slurmd_wanted=record.slurmd_started and not record.left_slurm,
            # Powering off where that does not end the bill helps nobody.
            dead_man_s=self._live.settings.timing.dead_man_s if self._ends_itself(record.provider) else 0.0,
            spot_cloud=spot_notices.spot_cloud(record),
            sections=self._node_settings.for_join(self._machine_store.get(record.name)),
        )  # fmt: skip

    async def _refused(self, machine: str, error: JoinRefused) -> None:
        record = self._machine_store.get(machine)
        if error.fatal and record.phase in {Phase.BOOTING, Phase.JOINING, Phase.CONFIGURING}:
            await self._node_steps.refuse(record, error)
        elif record.problem != str(error):
            self._machine_store.node_change(machine, EventKind.REFUSED, f"refused for now: {error}", problem=str(error))

    async def machine_for_node(self, token_hash: str) -> NodeCaller | None:
        """The machine of a node token, and the device that it joined with."""
        name, generation = self._tokens.whose_node(token_hash, self._node_tokens.generations()) or ("", 0)
        machine = self._machine_store.journal.machine(name) if name else None
        if machine is None:
            return None
        device_id = machine.tailnet_id or self._join_token_store.device(machine.name)
        return NodeCaller(machine.name, device_id, machine.facts is not None, generation)

    async def munge_exchange(self, machine: str, credential: str) -> str:
        """The head's half of the proof that both have the same munge key."""
        # Nodes come back from the change at one moment, most of them a little before the head is done.
        if not await self._munge_key.switched(SWITCH_WAIT_S):
            raise NotNow("the munge key is being changed at this moment")
        try:
            return await self._munge.exchange(credential)
        except MungeError as error:
            record = self._machine_store.get(machine)
            if record.problem != str(error):
                self._machine_store.node_change(
                    machine, EventKind.MUNGE, f"munge is not proved: {error}", problem=str(error)
                )
            raise

    def _keeps_spare(self, record: Machine, report: PollIn) -> Machine:
        """What the agent tells of its spare. One that has such, and no other, was born with a key of its own."""
        sha256, own = report.spare_key_sha256, record.own_key
        text = f"keeps the spare auth key {sha256[:12]}" if sha256 else "no longer keeps a spare auth key"
        own = own or bool(sha256 and not report.auth_key_sha256)
        return self._machine_store.node_change(record.name, EventKind.AUTH_KEY, text, spare_key=sha256, own_key=own)

    def _reboot(self, record: Machine, *, going_down: bool) -> Machine:
        """A machine that says that it reboots is waited for as long as a boot may take."""
        if going_down and not record.rebooting:
            now = self._machine_store.now()
            return self._machine_store.node_change(record.name, EventKind.REBOOT, "it reboots", rebooting_since=now)
        if record.rebooting and not going_down:
            text = "it is back after a reboot"
            return self._machine_store.node_change(record.name, EventKind.REBOOT, text, rebooting_since=None)
        return record

    async def poll(self, machine: str, report: PollIn, hold_s: float) -> Sequence[Command]:
        """Take the agent's report; return its commands."""
        record, problem = self._machine_store.get(machine), redact(report.problem or problem_of(report))
        if report.munge_ok and not record.munge_ok:
            record = self._machine_store.node_change(
                machine, EventKind.MUNGE, "munge is proved both ways", munge_ok=True, problem=""
            )
        elif problem and problem != record.problem:
            record = self._machine_store.node_change(machine, EventKind.PROBLEM, problem, problem=problem)
        elif report.munge_ok and record.problem and not problem:
            record = self._machine_store.node_change(
                machine, EventKind.PROBLEM, f"is over: {record.problem}", problem=""
            )
        record = self._reboot(record, going_down=report.phase == "rebooting")
        if report.notices:
            self._machine_store.node_event(machine, EventKind.LOGIN, *report.notices)
        if report.auth_key_sha256 not in ("", record.auth_key):
            text = f"keeps the auth key {report.auth_key_sha256[:12]}"
            record = self._machine_store.node_change(
                machine, EventKind.AUTH_KEY, text, auth_key=report.auth_key_sha256, own_key=False
            )  # one that keeps a key was not born with one of its own
        if report.spare_key_sha256 != record.spare_key:
            record = self._keeps_spare(record, report)
        if report.metadata_open != record.metadata_open:
            text = f"its metadata service is open to users: {report.metadata_open}"
            text = text if report.metadata_open else "its metadata service is closed to users"
            record = self._machine_store.node_change(
                machine, EventKind.METADATA, text, metadata_open=report.metadata_open
            )
        if report.lacks is not None and report.lacks != record.lacks:
            text = f"jobs lack {lacking(report.lacks)} on it" if report.lacks else "jobs lack nothing on it"
            record = self._machine_store.node_change(machine, EventKind.LIMITS, text, lacks=report.lacks)
        self._machine_store.journal.note(replace(record, heartbeat_at=self._machine_store.now()))
        last = self._reports.current.get(machine)
        record = spot_notices.take(self._machine_store, self._cooldowns, record, report, last)
        self._reports.heard(
            record, report.heartbeat, self._machine_store.now(), report.sections, report.faults,
            spot_notices.kinds(report),
        )  # fmt: skip
        ended = self._agents.settle(machine, report.results)
        self._munge_key.note_report(machine, report.model_copy(update={"results": tuple(ended)}))
        self._agent_spoke(machine)
        if record.facts is not None:
            self._agents.offer_roster(machine, report.roster_version, self._machine_store.clock.monotonic_s())
            self._node_settings.offer(record)
        return await self._agents.poll(machine, (), hold_s)

    def expects_logs(self, machine: str) -> bool:
        """The next poll may be larger."""
        return self._agents.expects_logs(machine)
