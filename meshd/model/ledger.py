"""What is billed: the lives of machines, and the time that jobs used of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from meshd.model.budget import MICROS


@dataclass(frozen=True, slots=True)
class Life:
    """The billed life of a machine at one price. A machine whose price changes has several, one after the other.

    Attributes:
        part: 0 for a machine's first life, then 1, ...
        since: from when it is billed.
        until: until when; None while it goes on.
        end_asked_at: when its cloud was first asked to end it; None when it was not.
        shown: its cloud has shown it. Else it is not clear whether it exists; it counts meanwhile.
        increment_s, minimum_s: how its cloud rounds a machine's time up.
    """

    machine: str
    pool: str
    slot: str
    provider: str
    region: str
    instance_type: str
    instance_id: str
    spot: bool
    gpus: int
    vcpus: int
    micros_per_hour: int
    since: datetime
    until: datetime | None = None
    end_asked_at: datetime | None = None
    shown: bool = True
    increment_s: float = 1.0
    minimum_s: float = 0.0
    part: int = 0

    def end(self, now: datetime) -> datetime:
        """Until when it is billed, as far as is known at `now`. It never becomes earlier as time goes on.

        A machine that its cloud was asked to end is billed until then. If it is still there `ENDS_WITHIN` later, its
        cloud does not end it, and it is billed until it is gone.
        """
        if self.until is not None:
            return max(self.until, self.since)
        if self.end_asked_at is not None and now - self.end_asked_at <= ENDS_WITHIN:
            now = min(now, self.end_asked_at)
        return max(now, self.since)

    def billed_until(self, now: datetime) -> datetime:
        """The same, rounded up as the cloud does where the life is over."""
        end = self.end(now)
        if self.until is None:
            return end
        step = timedelta(seconds=max(self.increment_s, 0.0))
        length = max(end - self.since, timedelta(seconds=self.minimum_s))
        if step:
            length = -(-length // step) * step
        return self.since + length

    def cost(self, start: datetime, end: datetime) -> int:
        """The cost of the part from `start` to `end` that is within `since` and `end`, in millionths of a USD.

        Costs of parts that follow each other add up to the cost of the whole, exactly.
        """
        return self._cost_until(max(end, start)) - self._cost_until(start)

    def _cost_until(self, at: datetime) -> int:
        lasted = max(at - self.since, timedelta()) // _MICROSECOND
        return self.micros_per_hour * lasted // (3600 * MICROS)


@dataclass(frozen=True, slots=True)
class JobUse:
    """The time in which a job had a node, as Slurm tells.

    Attributes:
        job: its id; of a job that ran twice, each time is a use of its own.
        pool: its partition's pool.
        until: None while it runs.
        gpus, cpus: that it had of this node.
    """

    job: str
    slot: str
    user: str
    account: str
    name: str
    since: datetime
    until: datetime | None
    gpus: int = 0
    cpus: int = 0


ENDS_WITHIN = timedelta(seconds=600)
"""A cloud that was asked to end a machine does so within this time, or it is billed until it is gone."""

_MICROSECOND = timedelta(microseconds=1)
