"""The copy of a machine's disk, of which a vendor makes an image: it takes a time, and may fail."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from deploy.sandbox.clouds.ledger import Ledger, RentedMachine


class CopyState(enum.Enum):
    """How far a copy is. Each vendor has words of its own for it."""

    PENDING = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()


@dataclass(slots=True)
class DiskCopy:
    """One copy.

    Attributes:
        begun_at: when it was ordered.
        ready_at: it is pending until then at least.
        fails: it cannot be made.
        done: the hypervisor has made it.
    """

    begun_at: datetime
    ready_at: datetime
    fails: bool = False
    done: bool = False

    def begin(self, ledger: Ledger, machine: RentedMachine, layer: str) -> None:
        """Have the hypervisor make it, as the image that it calls `layer`."""

        def done() -> None:
            self.done = True

        def failed() -> None:
            self.fails = True

        ledger.snapshot(machine, layer, done, failed)

    def state(self, now: datetime) -> CopyState:
        """How far it is."""
        if now < self.ready_at or not (self.done or self.fails):
            return CopyState.PENDING
        return CopyState.FAILED if self.fails else CopyState.READY
