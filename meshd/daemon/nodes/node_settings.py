"""What nodes are given beside munge and Slurm: which section of the node settings each agent should hold, and sends it.

A machine that joins gets all sections in the answer to its join. After that each poll says which it holds; the head
sends those that differ, at once when the settings change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from meshd.api.node_schema import PollIn
from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.config import PoolSettings, Settings
from meshd.config.setup_script import read_script
from meshd.daemon.agents import AgentQueues
from meshd.daemon.controller import Controller
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.nodes.users_on_nodes import SECTION, UsersOnNodes
from meshd.daemon.observe.agent_reports import NodeReports
from meshd.daemon.reporting import Check, fail, ok, warn
from meshd.model.machine import IN_SLURM, Machine, Phase
from meshd.model.node_settings import SectionState, WantedSection
from meshd.plan.accounts import Accounts
from meshd.plan.node_settings import MLFLOW_URI, ClusterGiven, NodeKind, PoolGiven, Section, sections, to_send
from meshd.plan.plugstack import NO_PYXIS, PyxisLine
from meshd.runtime.clock import Clock
from meshd.slurm.init.task_prolog import TASK_PROLOG
from meshd.store.journal import Journal


def given_by(
    settings: Settings,
    pools: Mapping[str, PoolGiven],
    head: str,
    accounts: Accounts | None,
    ssh_key: str = "",
    pyxis: PyxisLine = NO_PYXIS,
) -> ClusterGiven:
    """What the settings and the head's accounts give nodes.

    Args:
        settings: those in force.
        pools: what their pools give, with the scripts that they name.
        head: the head's address on the tailnet; "" while it is not known.
        accounts: the head's users; None: not known.
        ssh_key: the public half of root's key on the head; "" for none.
        pyxis: the line by which the head requires pyxis.
    """
    env = {MLFLOW_URI: settings.mlflow.uri(head)} if settings.mlflow.enabled and head else {}
    return ClusterGiven(
        pools, env=env, shares=settings.shares, accounts=accounts,
        move_image_accounts=settings.users.image_accounts == "move", ssh_key=ssh_key, head=head, pyxis=pyxis,
    )  # fmt: skip


def _of_pool(pool: PoolSettings) -> PoolGiven:
    script = read_script(pool.setup)
    return PoolGiven(
        env=pool.env, packages=pool.packages, setup=script.text, setup_fault=script.fault,
        setup_timeout_s=pool.setup_timeout_s,
    )  # fmt: skip


def problem_of(report: PollIn) -> str:
    """What failed of the node settings, for people; "" when nothing did."""
    failed = [
        f"{name}: {one.detail}" for name, one in (report.sections or {}).items() if one.state is SectionState.FAILED
    ]
    return "; ".join(failed)[:1000]


class NodeSettings(Controller):
    """Keeps the agents' node settings.

    Args:
        live: the settings.
        journal: the machines.
        agents: the agents' commands.
        reports: what the agents said last.
        clock: time.
        pod_providers: the providers that rent pods.
        head: the head's address on the tailnet; "" while it is not known.
        ssh_key: the public half of root's key on the head; "" for none.
        task_prolog: the TaskProlog of the slurmctld that runs; raises SlurmError.
        accounts: the head's users; None from it: not known.
        pyxis: the line by which the head requires pyxis.
    """

    name = "node_settings"

    def __init__(
        self,
        live: LiveSettings,
        journal: Journal,
        agents: AgentQueues,
        reports: NodeReports,
        clock: Clock,
        pod_providers: Mapping[str, str],
        *,
        task_prolog: Callable[[], Awaitable[str]],
        head: Callable[[], str] = lambda: "",
        accounts: Callable[[], Accounts | None] = lambda: None,
        ssh_key: Callable[[], str] = lambda: "",
        pyxis: Callable[[], PyxisLine] = PyxisLine,
    ) -> None:
        super().__init__(clock)
        self._live = live
        self._journal = journal
        self._agents = agents
        self._reports = reports
        self._pod_providers = pod_providers
        self._head = head
        self._last_head = ""
        self._read_ssh_key = ssh_key
        self._ssh_key = ssh_key()
        self._read_pyxis = pyxis
        self._pyxis = pyxis()
        self._task_prolog = task_prolog
        self._accounts = accounts
        self._last_accounts: Accounts | None = None
        self._made_from: Settings | None = None
        self._pools: Mapping[str, PoolGiven] = {}
        self._given: ClusterGiven | None = None
        self._generation = 0
        self._looked_at = 0
        self._made: dict[NodeKind, Mapping[str, Section]] = {}
        self._wanted: dict[NodeKind, Mapping[str, WantedSection]] = {}
        self._users = UsersOnNodes()

    def checks(self) -> Iterable[Check]:
        """Whether jobs get the variables of their node."""
        yield Check(CheckName.JOB_ENV, self.check)

    async def check(self) -> CheckRow:
        """For `meshctl doctor`: is TaskProlog in force, and does every node have its program? Raises SlurmError."""
        name, found, lacking = CheckName.JOB_ENV, await self._task_prolog(), self._without_job_env()
        if found == str(TASK_PROLOG) and lacking:
            text = f"every task fails on {', '.join(lacking[:5])}: TaskProlog is set, and its program is not there"
            cure = f"`meshctl remove {lacking[0]}` gives it back after its jobs: the next machine has it"
            return fail(name, ProblemCode.TASK_PROLOG_MISSING, text, cure)
        if found == str(TASK_PROLOG):
            return ok(name, f"jobs get it from {TASK_PROLOG}")
        if found:
            text = f"TaskProlog is {found}: jobs get the variables of their node only if it runs {TASK_PROLOG}"
            cure = f"add to it: if [ -x {TASK_PROLOG} ]; then {TASK_PROLOG}; fi"
            return warn(name, ProblemCode.TASK_PROLOG_OFF, text, cure)
        text = "TaskProlog is not set: jobs do not get the variables of their node, such as pools.NAME.env"
        cure = "`meshctl init` as root sets it, or says what is to be done first"
        return warn(name, ProblemCode.TASK_PROLOG_OFF, text, cure)

    def _without_job_env(self) -> list[str]:
        """The slots whose agent has reported, and does not have the section applied."""
        found = []
        for machine in self._journal.machines():
            report = self._reports.current.get(machine.name)
            if machine.phase in (Phase.TESTING, Phase.READY) and report is not None:
                job_env = (report.sections or {}).get("job_env")
                if job_env is None or job_env.state is not SectionState.APPLIED:
                    found.append(str(machine.slot))
        return sorted(found)

    async def reconcile(self) -> None:
        """Send what has changed. It is woken after each tick, and after each reload."""
        self.look()

    def look(self) -> None:
        """Send the sections that have changed to the agents that poll. Each poll is looked at as well."""
        self._ssh_key, self._pyxis = self._read_ssh_key(), self._read_pyxis()
        self._refresh()
        if self._looked_at == self._generation:
            return
        self._looked_at = self._generation
        self._users.keep({machine.name for machine in self._journal.machines()})
        for machine in self._journal.machines():
            if machine.facts is not None and machine.phase in IN_SLURM:
                self.offer(machine)

    def of(self, machine: Machine) -> Mapping[str, Section]:
        """The sections that this machine should have."""
        given = self._refresh()
        kind = NodeKind.of(machine, self._pod_providers)
        if kind not in self._made:
            self._made[kind] = made = sections(given, kind)
            self._wanted[kind] = {name: one.wanted for name, one in made.items()}
            if SECTION in made:
                self._users.sent_as(made[SECTION].wanted.digest)
        return self._made[kind]

    def _refresh(self) -> ClusterGiven:
        """All that sections are made from. When any of it changes, the sections are made again."""
        settings, head = self._live.settings, self._head() or self._last_head  # a tailscaled may be restarting
        accounts = self._accounts()
        known = self._made_from is settings and head == self._last_head and accounts is self._last_accounts
        read = (self._ssh_key, self._pyxis)
        if self._given is None or not known or (self._given.ssh_key, self._given.pyxis) != read:
            if self._made_from is not settings:
                self._pools = {name: _of_pool(pool) for name, pool in settings.pools.items()}  # this reads files
            self._made_from, self._last_head, self._last_accounts = settings, head, accounts
            self._given = given_by(settings, self._pools, head, accounts, *read)
            self._made, self._wanted = {}, {}
            self._users.changed(accounts)
            self._generation += 1
        return self._given

    def wanted(self, machine: Machine) -> Mapping[str, WantedSection]:
        """The digests of `of`."""
        self.of(machine)
        return self._wanted[NodeKind.of(machine, self._pod_providers)]

    def has_user(self, machine: str, uid: int) -> bool:
        """Whether a machine has a user as on the head; True for a number that no user of the cluster has."""
        self._refresh()
        return self._users.has(machine, uid)

    def of_arriving(self) -> Mapping[str, Mapping[str, WantedSection]]:
        """By machine that is being configured, what it should have."""
        return {m.name: self.wanted(m) for m in self._journal.machines() if m.phase is Phase.CONFIGURING}

    def for_join(self, machine: Machine) -> dict[str, dict[str, Any]]:
        """What the answer to its join says."""
        found = self.of(machine).items()
        return {name: {"digest": one.wanted.digest, "value": dict(one.value)} for name, one in found}

    def offer(self, machine: Machine) -> None:
        """Send what its agent does not hold; nothing to an agent that is older than sections."""
        report = self._reports.current.get(machine.name)
        if report is None:
            return
        if report.sections is None:
            self._users.unknown_on(machine.name)
            return
        self._users.told(machine.name, report.sections.get(SECTION))
        names = to_send(self.wanted(machine), report.sections)
        if not names:
            self._agents.holds_sections(machine.name)
        for name in names:
            self._agents.offer_section(machine.name, self.of(machine)[name], self._clock.monotonic_s())
