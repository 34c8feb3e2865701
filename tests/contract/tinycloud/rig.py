"""The rig of tinycloud: starts the stand-in and creates adapters for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from aiohttp.test_utils import TestServer

from meshd.contract.faults import FaultEngine, FaultKind
from meshd.contract.rig import CloudMachine, Rig
from meshd.provider_api import Offer, Provider, ProviderContext
from tinycloud.adapter import TinyProvider
from tinycloud.cloud import TYPES, TinyCloud


class TinyRig(Rig):
    name = "tiny"
    secrets = ("tiny-key-that-must-never-show",)
    secret_setting = "key"
    unsupported: ClassVar[Mapping[FaultKind, str]] = {FaultKind.DENIED: "a key may do everything"}
    provider: ClassVar[type[TinyProvider]] = TinyProvider

    async def start(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.faults = FaultEngine()
        self.cloud = TinyCloud(self.faults, self.secrets[0], lambda: self.now)
        server = TestServer(self.cloud.app())
        await server.start_server()
        self.stack.push_async_callback(server.close)
        self.stack.callback(self.cloud.close)
        self.url = str(server.make_url("/"))

    def build(self, cluster: str, **settings: Any) -> Provider:
        table = {"url": self.url, "key": self.secrets[0], **settings}
        return type(self).provider(ProviderContext(cluster, table, lambda: self.now))

    def unreachable(self) -> Provider:
        return self.make(url="http://127.0.0.1:9")

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def set_capacity(self, offer: Offer, machines: int) -> None:
        self.cloud.capacity[offer.instance_type, offer.region] = machines

    def clear(self) -> None:
        super().clear()
        for machine in self.cloud.machines:
            others = tuple(fault for fault in machine.faults.lifecycle if fault.kind is not FaultKind.NEVER_ENDS)
            machine.faults = replace(machine.faults, lifecycle=others)

    def machines(self) -> Sequence[CloudMachine]:
        return [
            CloudMachine(
                token=machine.body["name"],
                alive=machine.state(self.now) != "dead",
                region=machine.body["region"],
                instance_type=machine.body["type"],
                gpus=int(TYPES[machine.body["type"]]["gpus"]),
                usd_per_hour=float(TYPES[machine.body["type"]]["usd"]),
                user_data=machine.body["user_data"],
                address="198.51.100.7",
                tags=machine.body["tags"],
            )
            for machine in self.cloud.machines
        ]
