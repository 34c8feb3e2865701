"""What the contract suite needs of each adapter: the adapter, its stand-in, and what its cloud cannot do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from deploy.sandbox.clouds.gce_key import private_key, service_account
from deploy.sandbox.clouds.ledger import Ledger
from deploy.sandbox.clouds.server import CloudServer, ServerOptions
from deploy.sandbox.hypervisor import HollowHypervisor
from meshd.config import Settings
from meshd.contract.faults import Fault, FaultEngine, Kind
from meshd.daemon.guard.guards import Guards
from meshd.obs.metrics import Metrics
from meshd.price_list import PriceList
from meshd.provider_api import Instance, LaunchRequest, Offer, OfferQuery, Provider, ProviderContext
from meshd.runtime.clock import SystemClock
from providers.aws.provider import create as create_aws
from providers.gce.provider import create as create_gce
from providers.lambda_cloud.provider import create as create_lambda
from providers.paperspace.provider import create as create_paperspace
from providers.runpod.provider import create as create_runpod

FetchedPrices = Callable[[], PriceList | None]
NO_PRICES: FetchedPrices = lambda: None  # noqa: E731
CLUSTER = "lab"
SECRET = "s3cr3t-key-that-must-never-show"
USER_DATA = "#!/bin/sh\n# join-token-that-must-never-show\necho 'grüß dich' > /run/meshd\n"
GPU = OfferQuery(gpu="h100", gpus=1)


class ManualClock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self._now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class Rig(Protocol):
    """One adapter with its cloud. A new adapter is one more class like those below, and a line in RIGS."""

    name: str
    clock: ManualClock
    hypervisor: HollowHypervisor
    server: CloudServer
    cannot: Mapping[Kind, str]
    secrets: tuple[str, ...]
    permissions: tuple[str, ...]

    @property
    def ledger(self) -> Ledger:
        """The cloud's machines."""
        ...

    @property
    def faults(self) -> FaultEngine:
        """What goes wrong in the cloud."""
        ...

    def make(self, cluster: str = CLUSTER, fetched_prices: FetchedPrices = NO_PRICES, **settings: Any) -> Provider:
        """A new adapter, as after a restart of the daemon; closed by the rig."""
        ...

    def unreachable(self) -> Provider:
        """An adapter whose cloud does not listen."""
        ...


@dataclass
class _Rig:
    server: CloudServer
    clock: ManualClock
    hypervisor: HollowHypervisor
    stack: AsyncExitStack
    name: str = ""
    secrets: tuple[str, ...] = (SECRET, "join-token-that-must-never-show")
    cannot: Mapping[Kind, str] = field(default_factory=dict)
    #: Those that `check` can tell, in the vendor's names; none where a key may do everything.
    permissions: tuple[str, ...] = ()
    factory: Callable[[ProviderContext], Provider] = create_aws

    @property
    def ledger(self) -> Ledger:
        return self.server.clouds[self.name].ledger

    @property
    def faults(self) -> FaultEngine:
        return self.server.clouds[self.name].faults

    def table(self) -> dict[str, Any]:
        raise NotImplementedError

    def unreachable(self) -> Provider:
        raise NotImplementedError

    def make(self, cluster: str = CLUSTER, fetched_prices: FetchedPrices = NO_PRICES, **settings: Any) -> Provider:
        table = {**self.table(), **settings}
        provider = self.factory(ProviderContext(cluster, table, self.clock.now, fetched_prices))
        self.stack.push_async_callback(provider.aclose)
        return provider


@dataclass
class AwsRig(_Rig):
    name: str = "aws"
    cannot: Mapping[Kind, str] = field(
        default_factory=lambda: {Kind.DUPLICATE: "a client token never makes two instances"}
    )
    permissions: tuple[str, ...] = (
        "ec2:DescribeInstances",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeImages",
        "ec2:RunInstances",
        "ec2:CreateTags",
    )

    def table(self) -> dict[str, Any]:
        return {
            "regions": ["us-east-1", "us-west-2"],
            "instance_types": ["p5.*", "g5.xlarge"],
            "endpoint_url": self.server.ec2_url,
            "access_key_id": "AKIASANDBOX",
            "secret_access_key": SECRET,
            "read_attempts": 1,
        }

    def unreachable(self) -> Provider:
        return self.make(endpoint_url="http://127.0.0.1:9", images={})


@dataclass
class LambdaRig(_Rig):
    name: str = "lambda"
    factory: Callable[[ProviderContext], Provider] = create_lambda

    def table(self) -> dict[str, Any]:
        return {"base_url": self.server.lambda_url, "api_key": SECRET, "call_spacing_s": 0, "launch_spacing_s": 0}

    def unreachable(self) -> Provider:
        return self.make(base_url="http://127.0.0.1:9", ssh_key_name="meshd")


@dataclass
class RunpodRig(_Rig):
    name: str = "runpod"
    permissions: tuple[str, ...] = ("GET /v2/pods", "GET /v2/catalog")
    factory: Callable[[ProviderContext], Provider] = create_runpod

    def table(self) -> dict[str, Any]:
        return {"base_url": self.server.runpod_url, "api_key": SECRET, "cpu_types": ["*"]}

    def unreachable(self) -> Provider:
        return self.make(base_url="http://127.0.0.1:9")


@dataclass
class PaperspaceRig(_Rig):
    name: str = "paperspace"
    factory: Callable[[ProviderContext], Provider] = create_paperspace

    def table(self) -> dict[str, Any]:
        return {"base_url": self.server.paperspace_url, "api_key": SECRET, "call_spacing_s": 0}

    def unreachable(self) -> Provider:
        return self.make(base_url="http://127.0.0.1:9")


@dataclass
class GceRig(_Rig):
    name: str = "gce"
    factory: Callable[[ProviderContext], Provider] = create_gce
    cannot: Mapping[Kind, str] = field(
        default_factory=lambda: {Kind.DUPLICATE: "a zone has a name only once, and a request id makes one machine"}
    )
    permissions: tuple[str, ...] = (
        "compute.instances.list",
        "compute.machineTypes.list",
        "compute.instances.create",
        "compute.instances.delete",
        "compute.zoneOperations.get",
        "compute.subnetworks.useExternalIp",
    )

    def __post_init__(self) -> None:
        self.key = service_account()
        self.secrets = (self.key, private_key().splitlines()[3], "join-token-that-must-never-show")

    def table(self) -> dict[str, Any]:
        return {
            "api_endpoint": self.server.gce_url,
            "service_account": self.key,
            "regions": ["us-central1", "us-east4"],
            "instance_types": ["a3-*", "g2-standard-4", "e2-standard-4"],
            "spot": True,
            "insert_wait_s": 0.5,
        }

    def unreachable(self) -> Provider:
        return self.make(api_endpoint="http://127.0.0.1:9")


class GuardedRig(LambdaRig):
    """An adapter as the daemon holds it: with everything that it puts around a provider. It is a provider too."""

    def make(self, cluster: str = CLUSTER, **settings: Any) -> Provider:
        return Guards(Settings, Metrics(), SystemClock()).around(super().make(cluster, **settings))


RIGS: dict[str, type[_Rig]] = {
    "aws": AwsRig,
    "lambda": LambdaRig,
    "paperspace": PaperspaceRig,
    "runpod": RunpodRig,
    "gce": GceRig,
    "lambda, guarded": GuardedRig,
}


async def build(name: str, stack: AsyncExitStack) -> Rig:
    """The rig called `name`, on a server of its own."""
    clock = ManualClock()
    hypervisor = HollowHypervisor()
    options = ServerOptions(
        boot_s=30,
        end_s=20,
        keep_s=3600,
        lambda_api_key=SECRET,
        paperspace_api_key=SECRET,
        lambda_limits=(0, 0),
        watch_s=0,
        runpod_api_key=SECRET,
        runpod_per_minute=0,
    )
    server = await stack.enter_async_context(CloudServer(hypervisor, options, clock.now))
    return RIGS[name](server, clock, hypervisor, stack)


def request(offer: Offer, token: str = "lab-h100-1-k7q2mz", user_data: str = USER_DATA) -> LaunchRequest:
    """A launch request with a tag of the user's."""
    return LaunchRequest(token, CLUSTER, offer, user_data, {"meshd-cluster": CLUSTER, "meshd-pool": "h100"})


async def launched(rig: Rig, provider: Provider, token: str = "lab-h100-1-k7q2mz") -> Instance:
    """Launch one machine and wait until the hypervisor has it."""
    offers = await provider.offers(GPU)
    instance = await provider.launch(request(offers[0], token))
    await rig.server.host.settle()
    return instance


async def running(rig: Rig, provider: Provider, token: str = "lab-h100-1-k7q2mz") -> Instance:
    """Launch one machine and let the time pass that it takes to boot."""
    instance = await launched(rig, provider, token)
    rig.clock.advance(31)
    return await provider.get(instance)


def strike(rig: Rig, kind: Kind, operation: str = "*", **more: Any) -> None:
    """Inject a fault, or skip the test where this cloud cannot have it."""
    import pytest

    if kind in rig.cannot:
        pytest.skip(f"{rig.name}: {rig.cannot[kind]}")
    rig.faults.inject(Fault(kind, operation, **more))
