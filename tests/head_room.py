"""The real services of the head API around a small world: one cloud, one Slurm, agents that answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.config import PoolSettings
from meshd.daemon.head_api.audit import AuditService, AuditSources
from meshd.daemon.head_api.freeze import FreezeService
from meshd.daemon.head_api.service import HeadService
from meshd.daemon.machine_logs import MachineLogs
from meshd.daemon.machines.restored import RestoreWatch
from meshd.daemon.money.service import CostService
from meshd.daemon.money.uses import JobUses
from meshd.daemon.nodes.wiring import NodeReporter
from meshd.daemon.notifications.controller import NotificationController
from meshd.daemon.observe.agent_reports import NodeLogs
from meshd.daemon.observe.report import SourceReporter
from meshd.daemon.observe.slurm_ping import SlurmPing
from meshd.daemon.prices.files import PriceFiles
from meshd.daemon.prices.prices import Prices
from meshd.daemon.prices.service import PriceService
from meshd.daemon.reporting import Report
from meshd.daemon.slurm.head_node import HeadNode
from meshd.daemon.waiting import WaitingJobs
from meshd.model.ledger import JobUse
from meshd.model.machine import Machine
from meshd.model.observed import Fresh, Snapshot
from meshd.provider_api import Provider
from meshd.slurm.job_records import JobRecords
from meshd.store.auth_rotations import AuthRotations
from meshd.store.bakes import Bakes
from meshd.store.kept_logs import KeptLogs
from meshd.store.ledger import Ledger
from meshd.store.machine_keys import OpenKeys
from meshd.store.notices import ToldReceivers
from meshd.store.restores import Restores
from meshd.tailnet.keystore import KeyStore
from tests.host_room import host_parts
from tests.image_room import image_parts
from tests.live import live_settings
from tests.node_room import node_parts
from tests.property.rotation_sim import Life, begin_tailnet
from tests.unit.api.answers import Checked
from tests.unit.daemon.munge_lab import MungeLab as MungeLab
from tests.unit.daemon.small import Small
from tests.unit.daemon.standins import LogAgent
from tests.unit.worlds import around, peer, tailnet

ROOT = Actor(uid=0, gid=0, pid=1, user="root", may_write=True)


class Files:
    """Slurm's files, all well."""

    def view(self) -> s.PublishView:
        return s.PublishView()


class NoDoctor:
    async def __call__(self) -> list[s.CheckRow]:
        return []


class Records:
    """Slurm's records of jobs."""

    def __init__(self) -> None:
        self.uses: tuple[JobUse, ...] = ()

    async def read(self, since: datetime, *, records: bool) -> JobRecords:
        return JobRecords(self.uses, whole=records)

    async def keeps_records(self) -> bool:
        return True


async def nothing(_provider: str) -> None:
    """No cloud to read here."""


WITHOUT_API: Any = SimpleNamespace(api=None)


class HeadRoom(Small):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.next: Snapshot | None = None
        self.agent = LogAgent()
        self.consoles: dict[str, Provider] = {}
        self.kept_logs_directory = directory / "logs"
        self.kept_logs = KeptLogs(self.kept_logs_directory)
        self.dead_key = ""
        self.tailnet_api: Any = None
        files = PriceFiles(directory / "prices")
        prices = Prices({}, files, self.clock, live=live_settings(), read_offers=nothing, journal=self.journal)
        rotation = Life(begin_tailnet(1, directory / "keys", 0), directory / "keys").service
        nodes = node_parts(self.machine_store)
        live = live_settings(pools={"h100": PoolSettings(partition="gpu")})
        ping = SlurmPing(self.slurm_answers, lambda: None, self.clock)
        price_service = PriceService(prices, lambda: self.seen.offers, self.desired, self.clock)
        sources: Any = SimpleNamespace(
            slurm=SimpleNamespace(read_once=self.look_at_slurm), key=SimpleNamespace(read_once=self.look_at_key)
        )
        self.audit = AuditService(
            self.journal,
            AuditSources(
                "lab", lambda: ("h100",), self.providers, Bakes(self.journal), tuple, self.tailnet_api,
                "https://api.example.org", KeyStore(directory / "audit-keys"), lambda: None, OpenKeys(self.journal),
                AuthRotations(self.journal), lambda: "n-head",
            ),
            self.clock,
        )  # fmt: skip
        self.notifications = NotificationController(
            live_settings(), ToldReceivers(self.journal), lambda: None, self.journal.machines, self.clock
        )
        self.restores = RestoreWatch(Restores(self.journal, self.clock.now()), live, self.clock)
        self.frozen = FreezeService(self.freezes, self.clock, lambda: None, self.restores)
        report = Report(
            self.frozen, SourceReporter(lambda: self.seen, self.journal, ping), self.reconciler, price_service,
            NodeReporter(live, self.machine_store, nodes, self.desired, lambda: self.seen, WITHOUT_API),
        )  # fmt: skip
        self.ledger = Ledger(self.journal, {}, self.clock.now)
        self.records = Records()
        uses = JobUses(self.ledger, self.records, self.records, self.clock)
        self.service = HeadService(
            live, self.machine_store, self.machines, slurm=self.slurm, slurm_files=Files(), slurm_ping=ping,
            tailnet=cast("Any", SimpleNamespace(table=SimpleNamespace(version="1.102"))), sources=sources,
            head_node=HeadNode(live, sources.slurm, "tower"),
            snapshot=lambda: self.seen, desired=self.desired, report=report,
            reload=lambda: s.ReloadView(reloaded=True), doctor=NoDoctor(), read_offers=self.read_offers,
            logs=NodeLogs(self.agent, self.clock),
            machine_logs=MachineLogs(self.agent, self.consoles, self.kept_logs, self.clock),
            prices=price_service,
            costs=CostService(self.ledger, self.journal, uses, self.desired, self.clock), auth_key=rotation,
            munge_key=MungeLab(directory / "munge").service, node_tokens=nodes.token_service,
            hosts=host_parts(self.machine_store, desired=self.desired).invitations,
            freezes=self.frozen,
            audit=self.audit,
            notifications=self.notifications,
            images=image_parts(self.machine_store, self.providers, self.desired, lambda: self.seen,
                freeze=lambda: self.freezes.current,
            ).service,
            waiting=WaitingJobs(
                live, self.journal, self.desired, lambda: self.seen,
                lambda: last.plan if (last := self.machines.controller.last) else None, self.clock,
            ),
        )  # fmt: skip
        self.head = Checked(self.service.handlers())

    async def slurm_answers(self) -> bool:
        return True

    async def look_at_slurm(self) -> None:
        self.seen = self.next or self.seen

    async def look_at_key(self) -> None:
        self.seen = replace(self.seen, dead_key=self.dead_key)

    async def read_offers(self) -> None:
        self.seen = self.next or self.seen


async def look_around(room: HeadRoom, m: Machine) -> None:
    """Every source is read, and what follows from it is done."""
    room.clock.t_s += 60
    now = room.clock.now()
    room.seen = replace(around(m), slurm=Fresh(room.slurm.seen, now), tailnet=Fresh(tailnet(peer(m)), now))
    room.reconciler.tick()
    await room.settle()
