"""What the contract suite needs of an adapter's author: the adapter, and a stand-in for its cloud."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest

from meshd.contract.faults import Fault, FaultEngine, Kind, When
from meshd.provider_api import MachineKind, Offer, OfferQuery, Provider

NOT_COVERED = "not covered: "
DOES_NOT_APPLY = "does not apply: "


@dataclass(frozen=True, slots=True)
class Rented:
    """A machine as the cloud itself knows it, whatever its API shows.

    Attributes:
        token: the name that its owner gave it.
        alive: it has not ended, and so costs money.
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


class Rig(ABC):
    """One adapter with its cloud, fresh for each case: an async context manager.

    A subclass starts its stand-in in `start`, makes adapters in `build`, and says below how its cloud differs.

    Attributes:
        name: the adapter's name.
        label: what the report calls it, when there are several rigs of one adapter.
        gpu: a query that finds offers with free capacity. The stand-in has several types, one with several GPUs.
        secrets: texts that may show nowhere: the credential, and parts of it.
        secret_setting: the setting with the credential; the same with `_file` names a file with it. "" for none.
        bad_settings: settings that must be refused with one line each.
        call_timeout, launch_timeout: settings with the adapter's own deadlines in seconds.
        machine_kind, tun, systemd: what the stand-in's machines are: `capabilities` must say the same.
        boot_s, end_s, keep_s: how long the stand-in's machines boot and end, and how long ended ones are shown.
        cannot: the faults that this cloud cannot have, or that its stand-in does not make, and why.
        permissions: those that `check` finds missing, in the vendor's names.
        faults: the stand-in's; set by `start`.
    """

    name: str
    label: str = ""
    gpu: OfferQuery = OfferQuery(gpu="h100", gpus=1)
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
    cannot: Mapping[Kind, str] = {}
    permissions: tuple[str, ...] = ()
    faults: FaultEngine

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.asked: set[Kind] = set()
        self.missed: dict[Kind, str] = {}

    @abstractmethod
    async def start(self) -> None:
        """Start the stand-in; what must be stopped goes on `self.stack`."""

    @abstractmethod
    def build(self, cluster: str, **settings: Any) -> Provider:
        """A new adapter for the stand-in, as after a restart of the daemon, with `settings` over the rig's own."""

    @abstractmethod
    def unreachable(self) -> Provider:
        """An adapter whose cloud does not listen, made by `make`."""

    @abstractmethod
    def machines(self) -> Sequence[Rented]:
        """Every machine that ever was, the oldest first."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Let time pass, for the stand-in and the adapters."""

    async def settle(self) -> None:
        """Wait until what was begun is done, without letting time pass."""
        return

    async def power_off(self, token: str) -> None:
        """Let a machine power itself off from inside."""
        not_covered("the rig cannot power machines off from inside")

    async def preempt(self, token: str) -> None:
        """Let the cloud take a spot machine back."""
        not_covered("the rig cannot take spot machines back")

    def set_room(self, offer: Offer, machines: int) -> None:
        """Let only so many machines of an offer's type fit in its place, those that run included."""
        not_covered("the rig cannot fill its cloud up")

    def clear(self) -> None:
        """Drop all faults, also those that keep machines from ending."""
        self.faults.clear()

    def make(self, cluster: str = "lab", /, **settings: Any) -> Provider:
        """A new adapter, closed by the rig."""
        provider = self.build(cluster, **settings)
        self.stack.push_async_callback(provider.aclose)
        return provider

    def strike(
        self,
        kind: Kind,
        operation: str = "*",
        *,
        when: When = When.NEXT,
        seconds: float = 0.0,
        status: int = 500,
        skip: int = 0,
    ) -> None:
        """Order a fault; where this cloud cannot have it, the case counts as not covered."""
        self.asked.add(kind)
        if kind in self.cannot:
            self.missed[kind] = self.cannot[kind]
            not_covered(f"{kind}: {self.cannot[kind]}")
        self.faults.inject(Fault(kind, operation, when, seconds=seconds, status=status, skip=skip))

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
    """End a case that this rig cannot try."""
    pytest.skip(NOT_COVERED + why)


def does_not_apply(why: str) -> NoReturn:
    """End a case about something that this cloud does not have."""
    pytest.skip(DOES_NOT_APPLY + why)
