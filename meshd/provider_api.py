"""The interface between meshd and an adapter for a cloud.

meshd finds an adapter through the entry-point group `meshd.providers`; the entry point is a factory
`create(context: ProviderContext) -> Provider`. An adapter decides nothing by itself: the daemon wraps it with
deadlines, metrics, circuit breakers and retries.
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
ImageId = NewType("ImageId", str)

CLUSTER_TAG = "meshd-cluster"
"""The tag with the cluster's name, on every machine."""
MACHINE_TAG = "meshd-machine"
"""The tag with the machine's name, on every machine that had a create call of its own."""
GANG_TAG = "meshd-gang"
"""The tag with the gang's id, on every machine that a create call made together with others."""
IMAGE_TAG = "meshd-image"
"""The tag with the image's name, on every image and on what the cloud stores it in."""


class InstanceState(StrEnum):
    """A machine's state. An adapter maps a vendor string that it does not know to UNKNOWN, never to GONE."""

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
    """The vendor's API, when the offers were read."""
    REFRESHED = "refreshed"
    """The price list that `PriceBook.fetch_prices` read last."""
    SHIPPED = "shipped"
    """The dated table that ships with the adapter."""
    SETTINGS = "settings"
    """The user's settings. Such a price has no date and never becomes stale."""


@dataclass(frozen=True, slots=True)
class ProviderCapabilities:
    """What a provider's machines can do and what its API promises.

    Attributes:
        machine_kind: what the provider rents. `meshctl doctor` shows it.
        tun: the machines have a TUN device. Where not, `meshctl scale` and `doctor` show what their jobs cannot do.
        systemd: the machines boot systemd. A machine without is a pod: a pool may refuse pods, or want nothing else.
        spot: the provider has spot offers. meshd warns about a pool that wants spot only and has no such provider.
        tags: the cloud keeps `LaunchRequest.tags`. If not, meshd sends none and `list` knows machines by their names.
        idempotent_launch: the API takes an idempotency token: repeating a launch with the same token never makes a
            second machine. If not, meshd looks for the machine of an unclear launch by name.
        user_data_max_b: the most bytes of user data that the API accepts. meshd refuses a launch with more.
        launch_spacing_s: the shortest time between two launches in the account; 0 when the vendor documents none. meshd
            keeps to it. With 0, meshd learns the rate from RateLimited errors.
        ends_itself: a machine that powers itself off stops costing money.
        user_data_private: only root on the machine can read its user data after the launch: no API call returns it, no
            console shows it, and no metadata service gives it to other processes on the machine. False when unsure.
        gang_max: the most machines that one call of `GangLauncher.launch_gang` rents; 0 for an adapter that is none.
        global_images: for an ImageBaker: machines of all regions boot from one image. `Image.region` is then "".
        foreign_hosts: machines may run on hosts that the vendor does not own. A host's owner can read everything on the
            machine, including the munge key. `meshctl doctor` warns.
        billing_increment_s: a machine's time is rounded up to a multiple of this in the bill.
        billing_minimum_s: the least time that is billed for a machine, however short its life.
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
    gang_max: int = 0
    global_images: bool = False
    foreign_hosts: bool = False
    billing_increment_s: float = 1.0
    billing_minimum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that can be rented now.

    Attributes:
        gpu: the normalised GPU model, lower case, e.g. "h100-sxm", "h100-pcie", "a10g"; "" for a CPU-only type.
        gpus: GPUs in one machine.
        gpu_memory_gib: of one GPU, as it is sold (`meshd.gpus.sold_gb`): 24 for what EC2 calls 22,888 MiB.
        usd_per_hour: of the whole machine.
        zone: the zone in the region; "" when the cloud has no zones or chooses one.
        available: whether the cloud has free capacity; None when it does not say.
        price_as_of: when the price was read from the vendor, or the date of the shipped table; None for a price from
            the user's settings.
        price_source: where the price comes from.
        capacity_hint: the cloud's own term for the free capacity, e.g. RunPod's "High"; "" when it has none.
        slot: the only slot that a machine of this offer may have, at most one at a time; "" for any slot, and many.
        standing: its machine costs nothing more while it has no job: it is wanted whenever it is there.
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
    slot: str = ""
    standing: bool = False

    @property
    def key(self) -> str:
        """A stable name of the offer, for cooldowns and the journal."""
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
        token: the machine's name, never used again: [a-z]([-a-z0-9]*[a-z0-9])?, at most 63 characters. It is the
            idempotency token, the cloud's name tag and the tailnet hostname.
        user_data: stage 1, a script for the first boot. On a virtual machine cloud-init runs it as root. For a
            container the adapter makes a start command that runs it as the container's first process.
        tags: at least CLUSTER_TAG, by which `list()` filters, and MACHINE_TAG.
        image: the image to boot, of `ImageBaker.images`; "" for the one that the settings lead to.
        keep_off: for an image to be made of it: when it powers itself off, it stays, and is STOPPED. Only an ImageBaker
            gets this.
    """

    token: str
    cluster: str
    offer: Offer
    user_data: str = field(repr=False)
    tags: Mapping[str, str] = field(default_factory=dict)
    image: ImageId = ImageId("")
    keep_off: bool = False


@dataclass(frozen=True, slots=True)
class GangRequest:
    """Several equal machines to rent with one call: all of them, or none.

    Attributes:
        id: the gang's id, never used for other machines (meshd.gang_id). It is the idempotency token. It may hold any
            of [-a-z0-9:+], and at most 200 characters: an adapter makes what its cloud takes out of it.
        tokens: the machines' names, in the order in which the id has them.
        user_data: stage 1, the same for all. A machine finds out its name and its instance id from the cloud's metadata
            service: EC2's `ami-launch-index` and `instance-id`, or GCE's `instance/name` and `instance/zone`.
        tags: at least CLUSTER_TAG, by which `list()` filters, and GANG_TAG.
        image: as of a LaunchRequest.
    """

    id: str
    tokens: tuple[str, ...]
    cluster: str
    offer: Offer
    user_data: str = field(repr=False)
    tags: Mapping[str, str] = field(default_factory=dict)
    image: ImageId = ImageId("")


@dataclass(frozen=True, slots=True)
class Instance:
    """A rented machine as its cloud describes it.

    Attributes:
        token: meshd's name of the machine; "" when the cloud shows none.
        reason: the cloud's code and text for this state. When a machine ended or was never made, meshd derives the
            failure's cause from it, e.g. no capacity, quota, a broken image (`meshd/plan/failure_rules.py`).
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


class ImageState(StrEnum):
    """An image's state. An adapter maps a vendor string that it does not know to UNKNOWN, never to FAILED."""

    PENDING = "pending"
    """The cloud copies the machine's disk."""
    AVAILABLE = "available"
    FAILED = "failed"
    """It will never boot a machine."""
    LEFTOVER = "leftover"
    """What is left of an image that was deleted halfway. It costs money like an image."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An image to make of a machine's disk.

    Attributes:
        name: of the image, never used again; as the token of a LaunchRequest. It is the idempotency token.
        instance: a machine that is STOPPED, launched with `keep_off`. `id` and `region` are needed.
        tags: at least CLUSTER_TAG, by which `images()` filters, and IMAGE_TAG. Keys and values are words of
            [-a-z0-9_.], at most 63 characters.
    """

    name: str
    instance: Instance
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Image:
    """An image of this cluster as its cloud describes it, or what is left of one.

    Attributes:
        name: as it was asked for.
        region: where machines boot from it; "" for an image from which machines of all regions boot.
        arch: of the machines that boot from it; "" where the cloud does not say.
        size_gib: of the disk that it is a copy of; None while the cloud does not say. The cloud may store less.
        usd_per_month: the most that it costs; None where that is not known.
        tags: as it was asked for.
        reason: the cloud's words for this state.
    """

    provider: ProviderName
    id: ImageId
    name: str
    state: ImageState
    region: str
    arch: str = "x86_64"
    created_at: datetime | None = None
    size_gib: int | None = None
    usd_per_month: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


class BilledKind(StrEnum):
    """What lies on an account, and mostly costs money."""

    MACHINE = "machine"
    VOLUME = "volume"
    """A disk, a network volume or a file system."""
    ADDRESS = "address"
    """An address that stays when its machine ends."""
    IMAGE = "image"
    SNAPSHOT = "snapshot"
    SCRIPT = "script"
    """A startup script. It costs nothing, and can hold a secret."""


@dataclass(frozen=True, slots=True)
class Billed:
    """Something that lies on an account, whoever made it.

    Attributes:
        name: as its owner gave it; "" for none.
        cluster: the cluster whose tag it carries, or by the form of whose names it is called; "" for none.
        machine: meshd's name of the machine or image that it was made for; "" when it does not say.
        attached_to: the id of the machine that has it; "" for none.
        usd_per_hour: what it costs; None where that is not known.
        cure: a command that ends it, as the vendor's own tools have it.
    """

    provider: ProviderName
    kind: BilledKind
    id: str
    name: str = ""
    region: str = ""
    cluster: str = ""
    machine: str = ""
    attached_to: str = ""
    created_at: datetime | None = None
    usd_per_hour: float | None = None
    cure: str = ""


@dataclass(frozen=True, slots=True)
class BilledListing:
    """All things of one kind in a region, or why they could not be listed.

    Attributes:
        region: "" for all of them.
        error: why the listing failed: then `items` is empty, and nothing is known.
    """

    provider: ProviderName
    kind: BilledKind
    region: str = ""
    items: tuple[Billed, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """What the daemon passes to an adapter's factory.

    Attributes:
        settings: the provider's table of the settings, as plain values. The adapter validates it and raises
            meshd.errors.ConfigError. It has secrets as pydantic SecretStr, or paths of files with them.
        cluster: the cluster's name. Every machine carries it, and `list()` returns only machines that do.
        now: UTC clock.
        fetched_prices: returns the newest result of the adapter's `fetch_prices`, also from before a restart; None when
            there is none.
    """

    cluster: str
    settings: Mapping[str, Any]
    now: Callable[[], datetime]
    fetched_prices: Callable[[], PriceList | None] = lambda: None


class Provider(Protocol):
    """A cloud. Every method may raise any leaf of ProviderError; meshd.errors says what each means."""

    @property
    def name(self) -> ProviderName:
        """The provider's name in the settings, e.g. "aws"."""
        ...

    @property
    def capabilities(self) -> ProviderCapabilities:
        """What this cloud can do. Constant."""
        ...

    async def offers(self) -> Sequence[Offer]:
        """Everything that can be rented with these settings, in no order."""
        ...

    async def launch(self, request: LaunchRequest) -> Instance:
        """Rent one machine and return at once, while it boots.

        The same token must not make two machines where the API can prevent it. Raises Uncertain when the machine may or
        may not have been made; the caller then lists and looks for the name before it tries again.
        """
        ...

    async def get(self, instance: Instance) -> Instance:
        """The machine's current state. Raises NotFound when the cloud does not know it any more.

        Of `instance`, only `id` and `region` are needed.
        """
        ...

    async def list(self) -> Sequence[Instance]:
        """All machines of this cluster in all regions of the settings. Raises when the list would be incomplete.

        Machines that are GONE may be missing.
        """
        ...

    async def terminate(self, instance: Instance) -> None:
        """Ask the cloud to end the machine. Returning means accepted: repeat until `get` raises NotFound or says GONE.

        May be called for a machine that is ending or gone; it may then raise NotFound.
        """
        ...

    async def check(self) -> str:
        """Check the credentials, and each permission that meshd needs, by calls that cost and change nothing.

        Returns a text for `meshctl doctor`: whose the credentials are, and what could not be checked.

        Raises:
            AuthFailed: the credentials are invalid, or lack permissions. The text names all missing permissions, in the
                vendor's terms.
        """
        ...

    async def aclose(self) -> None:
        """Close connections and stop threads."""
        ...


@runtime_checkable
class PriceBook(Protocol):
    """An optional interface of an adapter whose offers have prices from a table that can be fetched from the vendor.

    An adapter whose offers always have the vendor's current prices does not need it.
    """

    async def fetch_prices(self) -> PriceList:
        """The vendor's current prices of the types and regions of the settings.

        The daemon stores the result and returns it as `ProviderContext.fetched_prices`. Raises when the list would be
        incomplete; AuthFailed names the missing permission.
        """
        ...


@runtime_checkable
class Console(Protocol):
    """An optional interface of an adapter whose cloud keeps what a machine writes to its serial console."""

    async def console(self, instance: Instance) -> str:
        """The newest part of the console's text, as the cloud has it; "" while it has none.

        Of `instance`, only `id` and `region` are needed. Raises NotFound for a machine that the cloud does not know;
        AuthFailed names the missing permission.
        """
        ...


@runtime_checkable
class GangLauncher(Protocol):
    """An optional interface of an adapter whose cloud rents several machines with one call, all or none.

    `ProviderCapabilities.gang_max` says how many; the adapter's `idempotent_launch` must be True.
    """

    async def launch_gang(self, request: GangRequest) -> Sequence[Instance]:
        """Rent all machines of the request and return at once, while they boot: in the order of `tokens`.

        When the cloud cannot give all of them it gives none, and the call raises what `launch` raises for one machine.
        The same id must not make other machines. Raises Uncertain when some may have been made. From the first moment
        `list()` shows each machine with its own token.
        """
        ...


@runtime_checkable
class ImageBaker(Protocol):
    """An optional interface of an adapter whose cloud makes images of machines' disks."""

    def named_image(self, offer: Offer) -> str:
        """The image that the settings name for such machines; "" when they leave the choice to meshd."""
        ...

    async def create_image(self, request: ImageRequest) -> Image:
        """Have the cloud copy a machine's disk, and return at once, while it does.

        The machine must not be ended before the image is AVAILABLE. The same name never makes two images: the first
        one is returned. Raises Uncertain when it may or may not have been begun: the same call may be repeated.
        """
        ...

    async def images(self) -> Sequence[Image]:
        """All images of this cluster in all regions of the settings, in every state, and all leftovers.

        Raises when the list would be incomplete. A new image may be missing for a moment.
        """
        ...

    async def delete_image(self, image: Image) -> None:
        """Delete an image or a leftover with all that the cloud stores for it. Machines that run from it go on.

        May be repeated: one that is gone is no error. When it fails halfway, `images()` shows what is left.
        """
        ...


@runtime_checkable
class Auditor(Protocol):
    """An optional interface of an adapter that can list what lies on its account."""

    async def billed(self) -> Sequence[BilledListing]:
        """Everything on the account, whoever made it, by kind and region: also where the settings do not rent.

        It changes nothing. A listing is complete, or has `error`: one that fails does not spoil the others. Machines
        that have ended are left out.
        """
        ...


ProviderFactory = Callable[[ProviderContext], Provider]


@dataclass(frozen=True, slots=True)
class Brochure:
    """What an adapter can say of its cloud without asking it: from tables that ship with it, and fetched prices.

    Attributes:
        offers: those of which type and price are known.
        note: what is missing among them, for people.
    """

    capabilities: ProviderCapabilities
    offers: tuple[Offer, ...] = ()
    note: str = ""


BrochureFactory = Callable[[ProviderContext], Brochure]
