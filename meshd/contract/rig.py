"""What the contract suite needs from an adapter's author: the adapter, and a stand-in for its cloud."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest

from meshd.contract.faults import CloudFault, FaultEngine, FaultKind, When
from meshd.provider_api import BilledKind, MachineKind, Offer, Provider

NOT_COVERED = "not covered: "
DOES_NOT_APPLY = "does not apply: "


@dataclass(frozen=True, slots=True)
class CloudMachine:
    """A machine as the cloud itself knows it, whatever its API shows.

    Attributes:
        token: the name that its owner gave it.
        alive: it has not ended, so it costs money.
        container: it is a container, which runs `user_data` as its first process; None when the stand-in does not say.
    """

    token: str
    alive: bool
    region: str
    instance_type: str
    gpus: int
    usd_per_hour: float
    user_data: str = field(repr=False)
    address: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    container: bool | None = None


class Rig(ABC):
    """One adapter with its cloud, new for each case. An async context manager.

    A subclass starts its stand-in in `start`, creates adapters in `build`, and sets attributes where its cloud
    differs from the defaults.

    Attributes:
        name: the adapter's name.
        label: the name in the report, for several rigs of one adapter; "" for `name`.
        gpu, gpus, spot: which offers the cases rent: model, GPUs per machine, and whether spot (None: either). The
            stand-in has free capacity for them.
        secrets: texts that may appear nowhere: the credential, and parts of it.
        secret_setting: the setting that holds the credential; the same name with `_file` names a file with it. "" for
            none.
        bad_settings: settings that the adapter must refuse, with one line for each.
        call_timeout, launch_timeout: names of the settings with the adapter's deadlines, in seconds.
        machine_kind, tun, systemd: what the stand-in's machines are. `capabilities` must say the same.
        image_s: how long the stand-in takes to make an image.
        boot_s, end_s, keep_s: how long the stand-in's machines boot, how long they end, and how long ended ones are
            shown.
        unsupported: the faults that this cloud cannot have, or that the stand-in cannot inject, and why.
        permissions: the permissions that `check` reports as missing, in the vendor's names.
        faults: the stand-in's; set by `start`.
        injected: the faults that the case ordered.
        skipped: the unsupported ones among them, and why.
    """

    name: str
    label: str = ""
    gpu: str = "h100"
    gpus: int = 1
    spot: bool | None = None
    secrets: tuple[str, ...] = ()
    secret_setting: str = ""
    bad_settings: Mapping[str, Any] = {"no_such_key": 1}
    call_timeout: str = "call_timeout_s"
    launch_timeout: str = "launch_timeout_s"
    machine_kind: MachineKind = MachineKind.VM
    tun: bool = True
    systemd: bool = True
    boot_s: float = 30.0
    end_s: float = 20.0
    keep_s: float = 3600.0
    image_s: float = 60.0
    unsupported: Mapping[FaultKind, str] = {}
    permissions: tuple[str, ...] = ()
    faults: FaultEngine

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.injected: set[FaultKind] = set()
        self.skipped: dict[FaultKind, str] = {}

    @abstractmethod
    async def start(self) -> None:
        """Start the stand-in; push what must be stopped onto `self.stack`."""

    @abstractmethod
    def build(self, cluster: str, **settings: Any) -> Provider:
        """Create an adapter for the stand-in, as after a restart of the daemon; `settings` override the rig's own."""

    @abstractmethod
    def unreachable(self) -> Provider:
        """Create, by `make`, an adapter whose cloud does not listen."""

    @abstractmethod
    def machines(self) -> Sequence[CloudMachine]:
        """Every machine that was ever made, oldest first."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Move the clock of the stand-in and of the adapters."""

    async def settle(self) -> None:
        """Wait until background work of the stand-in is done, without moving the clock."""
        return

    async def power_off(self, token: str) -> None:
        """Power a machine off from inside."""
        not_covered("the rig cannot power machines off from inside")

    async def preempt(self, token: str) -> None:
        """Take a spot machine back, as the cloud does."""
        not_covered("the rig cannot take spot machines back")

    def write_console(self, token: str, text: str) -> None:
        """Make this the whole text of a machine's console."""
        not_covered("the rig has no consoles")

    def stored_images(self) -> int:
        """How many images the cloud stores and bills, whole or in parts, whatever its API shows."""
        not_covered("the rig has no images")

    def image_of(self, token: str) -> str:
        """The id of the image that a machine booted from; "" for the cloud's own."""
        not_covered("the rig has no images")

    def plant(self, kind: BilledKind, name: str, tags: Mapping[str, str]) -> str:
        """Put a thing on the account that is no machine: not by the adapter. Returns its id."""
        not_covered(f"the rig cannot make a {kind.value}")

    def set_capacity(self, offer: Offer, machines: int) -> None:
        """Limit how many machines of an offer's type fit in its region, running ones included."""
        not_covered("the rig cannot limit its cloud's capacity")

    def clear(self) -> None:
        """Remove all faults, including those that keep machines from ending."""
        self.faults.clear()

    def make(self, cluster: str = "lab", /, **settings: Any) -> Provider:
        """Create an adapter that the rig closes."""
        provider = self.build(cluster, **settings)
        self.stack.push_async_callback(provider.aclose)
        return provider

    def inject(
        self,
        kind: FaultKind,
        operation: str = "*",
        *,
        when: When = When.NEXT,
        seconds: float = 0.0,
        status: int = 500,
        skip: int = 0,
    ) -> None:
        """Order a fault. Where it is unsupported, the case ends as not covered."""
        self.injected.add(kind)
        if kind in self.unsupported:
            self.skipped[kind] = self.unsupported[kind]
            not_covered(f"{kind}: {self.unsupported[kind]}")
        self.faults.inject(CloudFault(kind, operation, when, seconds=seconds, status=status, skip=skip))

    async def __aenter__(self) -> Self:
        """Start the stand-in."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the adapters and stop the stand-in."""
        await self.stack.aclose()


def not_covered(why: str) -> NoReturn:
    """End a case that this rig cannot run."""
    pytest.skip(NOT_COVERED + why)


def does_not_apply(why: str) -> NoReturn:
    """End a case about something that this cloud does not have."""
    pytest.skip(DOES_NOT_APPLY + why)
