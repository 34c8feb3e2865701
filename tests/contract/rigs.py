"""The contract suite's rigs of the five adapters: the cloud's stand-in, and the faults that it does not support."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from deploy.sandbox.clouds.aws_images import StoredImage
from deploy.sandbox.clouds.disk_copy import DiskCopy
from deploy.sandbox.clouds.gce_images import StoredImage as StoredGceImage
from deploy.sandbox.clouds.gce_key import private_key, service_account
from deploy.sandbox.clouds.ledger import Ledger, Life, RentedMachine
from deploy.sandbox.clouds.paperspace_bodies import Script
from deploy.sandbox.clouds.server import CloudServer, ServerOptions
from deploy.sandbox.hypervisor import HollowHypervisor
from meshd.contract.faults import FaultKind
from meshd.contract.rig import CloudMachine, Rig, does_not_apply, not_covered
from meshd.daemon.providers.guards import Guards
from meshd.obs.metrics import Metrics
from meshd.price_list import PriceList
from meshd.provider_api import BilledKind, MachineKind, Offer, Provider, ProviderContext, ProviderFactory
from meshd.runtime.clock import SystemClock
from providers.aws.provider import create as create_aws
from providers.gce.provider import create as create_gce
from providers.lambda_cloud.provider import create as create_lambda
from providers.paperspace.provider import create as create_paperspace
from providers.runpod.provider import create as create_runpod
from tests.live import live_settings
from tests.sent import script_of

FetchedPrices = Callable[[], PriceList | None]
SECRET = "s3cr3t-key-that-must-never-show"
UNREACHABLE = "http://127.0.0.1:9"


class ManualClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self._now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class SandboxRig(Rig):
    """An adapter on one of the sandbox's clouds, whose machines are not booted."""

    secrets = (SECRET,)
    secret_setting = "api_key"
    bad_settings: ClassVar[Mapping[str, Any]] = {"no_such_key": 1, "call_timeout_s": -1}
    factory: ClassVar[ProviderFactory]
    #: The setting with the API's address.
    where = "base_url"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.hypervisor = HollowHypervisor()

    async def start(self) -> None:
        options = ServerOptions(
            boot_s=self.boot_s,
            end_s=self.end_s,
            keep_s=self.keep_s,
            image_s=self.image_s,
            lambda_api_key=SECRET,
            paperspace_api_key=SECRET,
            lambda_limits=(0, 0),
            clouds=frozenset({self.name}),
            watch_s=0,
            runpod_api_key=SECRET,
            runpod_per_minute=0,
        )
        self.server = await self.stack.enter_async_context(CloudServer(self.hypervisor, options, self.clock.now))
        self.faults = self.server.clouds[self.name].faults

    @property
    def ledger(self) -> Ledger:
        """The cloud's machines."""
        return self.server.clouds[self.name].ledger

    def table(self) -> dict[str, Any]:
        """The adapter's settings."""
        url = self.server.urls()["ec2" if self.name == "aws" else self.name]
        return {self.where: url, **self.extra()}

    def extra(self) -> dict[str, Any]:
        """The settings besides the address."""
        return {}

    def build(self, cluster: str, *, fetched_prices: FetchedPrices = lambda: None, **settings: Any) -> Provider:
        table = {**self.table(), **settings}
        return type(self).factory(ProviderContext(cluster, table, self.clock.now, fetched_prices))

    def unreachable(self) -> Provider:
        return self.make(**{self.where: UNREACHABLE})

    def machines(self) -> Sequence[CloudMachine]:
        return [_cloud_machine(machine) for machine in self.ledger.everything()]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def settle(self) -> None:
        await self.server.host.settle()

    async def power_off(self, token: str) -> None:
        await self.hypervisor.destroy(token)

    async def preempt(self, token: str) -> None:
        self.ledger.preempt(next(machine.id for machine in self.ledger.everything() if machine.token == token))
        await self.settle()

    def write_console(self, token: str, text: str) -> None:
        self.hypervisor.consoles[token] = text

    def set_capacity(self, offer: Offer, machines: int) -> None:
        # GCE's ledger counts machine types; an offer's also names the GPUs that are attached.
        self.ledger.set_capacity(offer.instance_type.partition("+")[0], offer.region, machines)

    def plant(self, kind: BilledKind, name: str, tags: Mapping[str, str]) -> str:
        if kind not in self.plants:
            does_not_apply(f"{self.name} has no {kind.value} of its own")
        return self.planted(kind, name, tags)

    #: What may lie on its account besides machines, and the cloud that keeps it.
    plants: ClassVar[frozenset[BilledKind]] = frozenset({BilledKind.VOLUME})

    def planted(self, kind: BilledKind, name: str, tags: Mapping[str, str]) -> str:
        """Make it on the stand-in."""
        raise NotImplementedError

    def clear(self) -> None:
        super().clear()
        self.ledger.release()


def _cloud_machine(machine: RentedMachine) -> CloudMachine:
    return CloudMachine(
        token=machine.token,
        alive=machine.life is not Life.ENDED,
        region=machine.region,
        instance_type=machine.instance_type,
        gpus=machine.gpus,
        usd_per_hour=machine.usd_per_hour,
        user_data=script_of(machine),
        address=machine.address,
        tags=machine.tags,
        container=machine.pod is not None,
    )


class AwsRig(SandboxRig):
    name = "aws"
    factory = create_aws
    where = "endpoint_url"
    secret_setting = "secret_access_key"
    unsupported: ClassVar[Mapping[FaultKind, str]] = {
        FaultKind.DUPLICATE: "a client token never makes two instances",
        FaultKind.NEVER_DONE: "its calls have no operations",
    }
    permissions = (
        "ec2:DescribeInstances",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeImages",
        "ec2:DescribeSpotPriceHistory",
        "ec2:RunInstances",
        "ec2:CreateTags",
    )

    def extra(self) -> dict[str, Any]:
        return {
            "regions": ["us-east-1", "us-west-2"],
            "instance_types": ["p5.*", "g5.xlarge"],
            "access_key_id": "AKIASANDBOX",
            "secret_access_key": SECRET,
            "read_attempts": 1,
            "spot": True,
        }

    plants = frozenset({BilledKind.VOLUME, BilledKind.ADDRESS, BilledKind.IMAGE, BilledKind.SNAPSHOT})

    def planted(self, kind: BilledKind, name: str, tags: Mapping[str, str]) -> str:
        if kind in {BilledKind.VOLUME, BilledKind.ADDRESS}:
            prefix = {BilledKind.VOLUME: "vol", BilledKind.ADDRESS: "eipalloc"}[kind]
            thing_id = f"{prefix}-{uuid.uuid4().hex[:17]}"
            return self.server.ec2.things.add(kind.value, "us-east-1", name=name, tags=tags, thing_id=thing_id).id
        digits, now = uuid.uuid4().hex, self.clock.now()
        image = StoredImage(
            f"ami-{digits[:17]}", f"snap-{digits[-17:]}", "us-east-1", name, "x86_64", 100,
            DiskCopy(now, now, fails=True, done=True), tags, tags,
        )  # fmt: skip
        image.registered, image.snapshot_there = kind is BilledKind.IMAGE, kind is BilledKind.SNAPSHOT
        self.server.ec2.images.images.append(image)
        return image.id if image.registered else image.snapshot_id

    def stored_images(self) -> int:
        return len({one.name for one in self.server.ec2.images.images if one.registered or one.snapshot_there})

    def image_of(self, token: str) -> str:
        return next(m.image for m in self.ledger.everything() if m.token == token)


class LambdaRig(SandboxRig):
    name = "lambda"
    factory = create_lambda
    unsupported: ClassVar[Mapping[FaultKind, str]] = {
        FaultKind.SMALL_PAGES: "its list of instances has no pages",
        FaultKind.PAGE_FAILS: "its list of instances has no pages",
        FaultKind.DENIED: "a key may do everything",
    }

    def extra(self) -> dict[str, Any]:
        return {"api_key": SECRET, "call_spacing_s": 0, "launch_spacing_s": 0}

    def planted(self, kind: BilledKind, name: str, tags: Mapping[str, str]) -> str:
        return self.server.lambda_cloud.things.add("volume", "us-south-2", name=name).id

    def unreachable(self) -> Provider:
        return self.make(base_url=UNREACHABLE, ssh_key_name="meshd")


class RunpodRig(SandboxRig):
    name = "runpod"
    machine_kind = MachineKind.CONTAINER
    tun = systemd = False
    permissions = ("GET /v2/pods", "GET /v2/catalog")
    factory = create_runpod
    unsupported: ClassVar[Mapping[FaultKind, str]] = dict.fromkeys(
        (FaultKind.SMALL_PAGES, FaultKind.PAGE_FAILS), "its list of pods has no pages"
    )

    def extra(self) -> dict[str, Any]:
        return {"api_key": SECRET, "cpu_types": ["*"], "ports": ["22/tcp"]}

    def planted(self, kind: BilledKind, name: str, tags: Mapping[str, str]) -> str:
        return self.server.runpod.things.add("volume", "US-KS-2", name=name).id


class RunpodSpotRig(RunpodRig):
    """RunPod with spot pods only, through the vendor's SDK."""

    label = "runpod, spot"
    spot = True
    permissions = (*RunpodRig.permissions, "POST /graphql")

    def extra(self) -> dict[str, Any]:
        return {**super().extra(), "spot": True}

    def inject(self, kind: FaultKind, operation: str = "*", *, seconds: float = 0.0, **more: Any) -> None:
        if (kind, operation) == (FaultKind.THROTTLED, "launch") and seconds:
            not_covered("the SDK does not show Retry-After")
        super().inject(kind, operation, seconds=seconds, **more)


class PaperspaceRig(SandboxRig):
    name = "paperspace"
    factory = create_paperspace
    unsupported: ClassVar[Mapping[FaultKind, str]] = {FaultKind.DENIED: "a key may do everything"}

    plants = frozenset({BilledKind.ADDRESS, BilledKind.SCRIPT})

    def extra(self) -> dict[str, Any]:
        return {"api_key": SECRET, "call_spacing_s": 0}

    def planted(self, kind: BilledKind, name: str, tags: Mapping[str, str]) -> str:
        if kind is BilledKind.ADDRESS:
            number = len(self.server.paperspace.things.of("address")) + 1
            return self.server.paperspace.things.add("address", "ny2", thing_id=f"203.0.113.{number}").id
        script_id = f"ss{uuid.uuid4().hex[:10]}"
        self.server.paperspace.scripts[script_id] = Script(script_id, name, "#!/bin/sh", True, self.clock.now())
        return script_id


class GceRig(SandboxRig):
    name = "gce"
    factory = create_gce
    where = "api_endpoint"
    secret_setting = "service_account"
    unsupported: ClassVar[Mapping[FaultKind, str]] = {
        FaultKind.DUPLICATE: "a zone has a name only once, and a request id makes one machine",
        FaultKind.SHOWN_TWICE: "the answer to its call shows no machines",
    }
    permissions = (
        "compute.instances.list",
        "compute.machineTypes.list",
        "compute.instances.create",
        "compute.instances.delete",
        "compute.zoneOperations.get",
        "compute.subnetworks.useExternalIp",
    )

    plants = frozenset({BilledKind.VOLUME, BilledKind.ADDRESS, BilledKind.IMAGE, BilledKind.SNAPSHOT})

    def planted(self, kind: BilledKind, name: str, tags: Mapping[str, str]) -> str:
        if kind is BilledKind.IMAGE:
            images, now = self.server.gce.images.images, self.clock.now()
            copy = DiskCopy(now, now, done=True)  # Google shows none that failed
            images.append(StoredGceImage(f"{name}-{len(images)}", "", "X86_64", 100, tags, "", "", copy, ""))
            return images[-1].name
        place = {BilledKind.VOLUME: "us-central1-a", BilledKind.ADDRESS: "us-central1"}.get(kind, "")
        # Names are unique in their place.
        unique = f"{name}-{len(self.server.gce.things.of(kind.value))}"
        self.server.gce.things.add(kind.value, place, name=unique, tags=tags)
        return f"{place}/{unique}" if place else unique

    def __init__(self) -> None:
        super().__init__()
        self.key = service_account()
        self.secrets = (self.key, private_key().splitlines()[3])

    def extra(self) -> dict[str, Any]:
        return {
            "service_account": self.key,
            "regions": ["us-central1", "us-east4"],
            "instance_types": ["a3-*", "g2-standard-4", "e2-standard-4"],
            "spot": True,
            "insert_wait_s": 0.5,
        }

    def stored_images(self) -> int:
        return len(self.server.gce.images.shown())

    def image_of(self, token: str) -> str:
        return next(m.image for m in self.ledger.everything() if m.token == token)


class GuardedRig(LambdaRig):
    """An adapter with all the wrappers that the daemon puts around it."""

    label = "lambda, guarded"

    def build(self, cluster: str, **settings: Any) -> Provider:
        return Guards(live_settings(), Metrics(), SystemClock()).around(super().build(cluster, **settings))


RIGS: dict[str, type[SandboxRig]] = {rig.name: rig for rig in (AwsRig, LambdaRig, PaperspaceRig, RunpodRig, GceRig)}


async def h100_offers(provider: Provider, *, gpus: int = 1, spot: bool | None = None) -> list[Offer]:
    """Offers of machines with H100s."""
    found = [offer for offer in await provider.offers() if offer.gpu.startswith("h100")]
    return [offer for offer in found if offer.gpus == gpus and spot in (None, offer.spot)]


async def build(name: str, stack: AsyncExitStack) -> SandboxRig:
    """The rig called `name`, on its own server."""
    return await stack.enter_async_context(RIGS[name]())
