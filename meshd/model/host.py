"""An owned machine: a host that redeems an invitation and is a node while it is there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from meshd.model.hardware import NodeFacts
from meshd.model.ids import PoolName, SlotName

PROVIDER = "static"
"""The provider of machines on hosts; a host's name is the machine's instance id."""
PRESENT_S = 60.0
"""A host that has not called for this long is away."""


class HostState(StrEnum):
    """Where a host says that it is."""

    FREE = "free"
    JOINING = "joining"
    NODE = "node"
    LEAVING = "leaving"


class HostOrder(StrEnum):
    """Where a host should go."""

    FREE = "free"
    NODE = "node"
    SLEEP = "sleep"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Host:
    """One owned machine, or an invitation that nobody has redeemed yet. Times are UTC.

    Attributes:
        name: what people call it.
        slot: the slot of its pool that only it takes.
        invited_at: when the invitation was made.
        expires_at: the invitation is invalid from then on.
        invitation: number of the invitation, of all with this name; its token is derived from it.
        enrolled_at: when the machine redeemed the invitation; None: nobody has.
        token_used: it used its host token, which closed the invitation.
        device_id: the tailnet's stable id of its device; "" before it is enrolled.
        tailnet_ip: of that device.
        ours: meshd's auth key logged the device in; False: its owner did, and meshd never deletes it.
        auth_key: its invitation has an auth key of its own for one use.
        facts: its hardware, as it was when it enrolled.
        usd_per_hour: what its owner says that it costs.
        wake_mac: Ethernet address for a magic packet that wakes it; "" for none.
        wake_command: words of the command that wakes it, run on the head by the daemon's user; empty for none.
        sleep_command: words of the command that it runs to sleep; empty: it stays awake, and is always wanted.
        seen_at: when it last called; None: never.
        state: what it then said.
        problem: what it then said keeps it from where it should go; "" for nothing.
        machine: the machine that it is assigned to; "" while it is free.
        assigned_at: since when.
        launch_token: the idempotency token of its last assignment.
        runs: the machine whose node agent it last said that it runs; "" for none.
        sleeping_since: when it was told to sleep; None: it was not, or woke up.
        woken_at: when meshd last woke it; None: never.
        evict: a person removed it.
        evicted_at: meshd is off the machine, or is not waited for; its device is deleted next. None otherwise.
    """

    name: str
    pool: PoolName
    slot: SlotName
    invited_at: datetime
    expires_at: datetime
    invitation: int = 1
    enrolled_at: datetime | None = None
    token_used: bool = False
    device_id: str = ""
    tailnet_ip: str = ""
    ours: bool = False
    auth_key: bool = False
    facts: NodeFacts | None = None
    usd_per_hour: float = 0.0
    wake_mac: str = ""
    wake_command: tuple[str, ...] = ()
    sleep_command: tuple[str, ...] = ()
    seen_at: datetime | None = None
    state: HostState = HostState.FREE
    problem: str = ""
    machine: str = ""
    assigned_at: datetime | None = None
    runs: str = ""
    launch_token: str = ""
    sleeping_since: datetime | None = None
    woken_at: datetime | None = None
    evict: bool = False
    evicted_at: datetime | None = None

    @property
    def can_sleep(self) -> bool:
        """Whether it sleeps when nobody needs it; such a host is woken on demand."""
        return bool(self.sleep_command) and self.can_wake

    @property
    def can_wake(self) -> bool:
        """Whether meshd can wake it."""
        return bool(self.wake_mac or self.wake_command)

    def open(self, now: datetime) -> bool:
        """Whether its invitation can still be redeemed by somebody."""
        return self.enrolled_at is None and now < self.expires_at

    def present(self, now: datetime) -> bool:
        """Whether it called lately."""
        return self.seen_at is not None and now - self.seen_at < timedelta(seconds=PRESENT_S)
