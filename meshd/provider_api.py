"""What an adapter must do, and the words in which clouds and meshd talk.

An adapter is found through the entry-point group `meshd.providers`; the entry point is a factory
`create(context: ProviderContext) -> Provider`. Adapters hold no policy: deadlines, metrics, rate limits between
processes and retries are put around them by the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType, Protocol, runtime_checkable

from meshd.price_list import PriceList

ProviderName = NewType("ProviderName", str)
InstanceId = NewType("InstanceId", str)


class InstanceState(StrEnum):
    """The contract's states. A vendor string that is not known maps to UNKNOWN, never to GONE."""

    BOOTING = "booting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    TERMINATING = "terminating"
    GONE = "gone"
    FAILED = "failed"
    UNKNOWN = "unknown"


class MachineKind(StrEnum):
    """What a provider rents."""

    VM = "vm"
    CONTAINER = "container"


class PriceSource(StrEnum):
    """Where an offer's price comes from."""

    API = "api"
    """The vendor's API told it when the offers were read."""
    REFRESHED = "refreshed"
    """The list that `PriceBook.fetch_prices` read."""
    SHIPPED = "shipped"
    """The dated table that ships with the adapter."""
    SETTINGS = "settings"
    """The user's own word, which has no date and does not age."""


@dataclass(frozen=True, slots=True)
class ProviderCapabilities:
    """What a provider's machines can do and what its API promises.

    Attributes:
        machine_kind: what is rented; `meshctl doctor` shows it.
        tun: the machines have a TUN device. Nothing is rented without one: such machines cannot be nodes.
        systemd: the machines boot systemd; `meshctl doctor` shows it.
        spot: there are spot offers. A pool that wants nothing but spot is told when none of its providers has any.
        tags: the cloud keeps `LaunchRequest.tags`. Without, none are sent, and `list` knows machines by their names.
        idempotent_launch: the API itself takes a token: a create call with the same one, whenever it is repeated, makes
            no second machine. Else meshd finds a lost create by its name.
        user_data_max_b: the most bytes of user data that the API accepts. meshd refuses a launch with more.
        launch_spacing_s: the least seconds between two launches of the account; 0 for none that is known. meshd keeps
            it; without, it learns the rate from refusals.
        ends_itself: a machine that powers itself off stops costing money.
        user_data_private: surely nobody but root on the machine can read its user data once it was sent: no API call
            gives it back, no console shows it, and no metadata service tells it to other processes on the machine.
        foreign_hosts: machines may run on hosts that are not the vendor's own: whoever owns one can read what is on the
            machine, the munge key included. `meshctl doctor` warns.
    """

    machine_kind: MachineKind = MachineKind.VM
    tun: bool = True
    systemd: bool = True
    spot: bool = False
    tags: bool = True
    idempotent_launch: bool = False
    user_data_max_b: int = 16384
    launch_spacing_s: float = 0.0
    ends_itself: bool = False
    user_data_private: bool = False
    foreign_hosts: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that can be rented now.

    Attributes:
        gpu: the normalised GPU model, lower case, e.g. "h100-sxm", "h100-pcie", "a10g"; "" for a CPU-only type.
        gpus: GPUs in one machine.
        gpu_memory_gib: of one GPU.
        usd_per_hour: of the whole machine.
        zone: where within the region, "" when the cloud has no zones or chooses itself.
        available: what the cloud says of free capacity; None when it does not tell.
        price_as_of: when the price was read from the vendor, or the date of the shipped table; None for a price of the
            user's settings.
        price_source: where the price comes from.
        capacity_hint: the cloud's own word on free capacity, e.g. RunPod's "High"; "" when it has none.
    """

    provider: ProviderName
    region: str
    zone: str
    instance_type: str
    gpu: str
    gpus: int
    gpu_memory_gib: int
    vcpus: int
    memory_mib: int
    usd_per_hour: float
    spot: bool = False
    arch: str = "x86_64"
    available: bool | None = None
    price_as_of: datetime | None = None
    capacity_hint: str = ""
    price_source: PriceSource = PriceSource.API

    @property
    def key(self) -> str:
        """A stable name of the offer, for cool-downs and the journal."""
        spot = "/spot" if self.spot else ""
        return f"{self.provider}/{self.zone or self.region}/{self.instance_type}{spot}"

    @property
    def usd_per_gpu_hour(self) -> float:
        """The price of one GPU for one hour; of the whole machine when it has none."""
        return self.usd_per_hour / max(self.gpus, 1)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One machine to rent.

    Attributes:
        token: the machine's name: unique for ever, [a-z]([-a-z0-9]*[a-z0-9])?, at most 63 characters. It is the
            idempotency token, the provider's name tag and the tailnet hostname.
        user_data: stage 1, run by cloud-init as root on the first boot.
        tags: at least `meshd-cluster`, which `list()` filters on.
    """

    token: str
    cluster: str
    offer: Offer
    user_data: str = field(repr=False)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Instance:
    """A rented machine as its cloud tells it.

    Attributes:
        token: our name of the machine, "" when the cloud shows none.
        reason: the cloud's own code and words on why it is in this state. Of a machine that has ended, or never came
            to be, they decide what is left alone: no capacity, quota, a broken image (`meshd/plan/failure_rules.py`).
        vendor_state: the cloud's own state string.
    """

    provider: ProviderName
    id: InstanceId
    token: str
    state: InstanceState
    region: str = ""
    instance_type: str = ""
    public_ip: str = ""
    spot: bool = False
    launched_at: datetime | None = None
    usd_per_hour: float | None = None
    reason: str = ""
    vendor_state: str = ""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """What the daemon gives an adapter's factory.

    Attributes:
        settings: the provider's table of the settings, as plain values; the adapter validates it (pydantic) and
            raises meshd.errors.ConfigError. Secrets in it are pydantic SecretStr or paths of files to read.
        cluster: the cluster's name: every machine carries it, and `list()` returns only those that do.
        now: UTC clock.
        fetched_prices: what the adapter's own `fetch_prices` gave last, in this or an earlier life of the daemon; None
            when it never did. It may be newer at each call.
    """

    cluster: str
    settings: Mapping[str, Any]
    now: Callable[[], datetime]
    fetched_prices: Callable[[], PriceList | None] = lambda: None


class Provider(Protocol):
    """A cloud. Every method may raise any leaf of ProviderError; what each leaf means is said there."""

    @property
    def name(self) -> ProviderName:
        """The provider's name in the settings, e.g. "aws"."""
        ...

    @property
    def capabilities(self) -> ProviderCapabilities:
        """What this cloud can do; constant."""
        ...

    async def offers(self) -> Sequence[Offer]:
        """Everything that can be rented with these settings, in no order."""
        ...

    async def launch(self, request: LaunchRequest) -> Instance:
        """Rent one machine and return at once, while it boots.

        The same token never makes two machines as far as the API can promise it; where the answer is in doubt,
        Uncertain is raised and the caller lists by name before it tries again.
        """
        ...

    async def get(self, instance: Instance) -> Instance:
        """The machine now. Raises NotFound once the cloud has forgotten it.

        `instance` needs `id` and `region` only.
        """
        ...

    async def list(self) -> Sequence[Instance]:
        """All machines of this cluster in all regions of the settings: complete, or raises.

        Machines that are GONE may or may not be in it.
        """
        ...

    async def terminate(self, instance: Instance) -> None:
        """Ask for the machine's end. Accepted, not done: call again until `get` raises NotFound or says GONE.

        Terminating a machine that is ending or gone is no error (NotFound may be raised).
        """
        ...

    async def check(self) -> str:
        """Prove the credentials, and each permission that meshd needs, by calls that cost and change nothing.

        Returns what they belong to, and what could not be told, for `meshctl doctor`.

        Raises:
            AuthFailed: the credentials are no good, or lack permissions: one text has them all,
                in the vendor's names.
        """
        ...

    async def aclose(self) -> None:
        """Close connections and threads."""
        ...


@runtime_checkable
class PriceBook(Protocol):
    """What an adapter may have besides, when its offers' prices come from a table and the vendor can be asked for them.

    An adapter whose offers carry the vendor's prices of the moment does not need it.
    """

    async def fetch_prices(self) -> PriceList:
        """The vendor's prices of the types and regions of the settings, all of now.

        The daemon keeps what comes, and gives it back as `ProviderContext.fetched_prices`. It is complete, or raises;
        AuthFailed names the permission that is missing.
        """
        ...


ProviderFactory = Callable[[ProviderContext], Provider]
