"""PURE: what jobs come, as a small TOML file describes it, and what goes wrong meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from meshd.plan.limits import COUNT_MAX

JOBS_MAX = 200_000
"""The most jobs of a load."""
DAYS_MAX = 92
DAY_S = 86400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}


def seconds(value: Any) -> Any:
    """A number of seconds, or one with the unit s, m, h or d in quotes."""
    if not isinstance(value, str):
        return value
    number, unit = value[:-1], _UNITS.get(value[-1:])
    try:
        return float(number) * unit if unit is not None else float(value)
    except ValueError:
        raise ValueError('write a time in quotes, e.g. "90s", "30m", "2h", "7d"') from None


Duration = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=DAYS_MAX * DAY_S)]
Span = tuple[Duration, Duration]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that comes.

    Attributes:
        at_s: when it is submitted, from the beginning.
        nodes: that it asks for.
        cpus, gpus: on each of them; both None: it has its nodes alone.
        run_s: how long it runs.
    """

    id: str
    user: str
    pool: str
    at_s: float
    nodes: int
    run_s: float
    cpus: int | None = None
    gpus: int | None = None


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


class JobsTable(_Table):
    """Jobs of one kind."""

    pool: str = Field(max_length=63)
    per_hour: Annotated[float, Field(gt=0, le=36000)] | None = Field(None, description="so many come, at any moment")
    every: Annotated[float, BeforeValidator(seconds), Field(ge=1)] | None = Field(
        None, description="one comes so often"
    )
    at: Annotated[tuple[Duration, ...], Field(max_length=10000)] = Field((), description="one comes at each of these")
    begin: Duration = Field(0.0, alias="from")
    until: Duration | None = None
    count: Annotated[int, Field(gt=0, le=10000)] = Field(1, description="so many come at once")
    nodes: Annotated[int, Field(gt=0, le=10000)] = 1
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] | None = None
    cpus_per_node: Annotated[int, Field(gt=0, le=COUNT_MAX)] | None = None
    lasts: Duration | None = None
    lasts_between: Span | None = None
    users: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(min_length=1, max_length=1000)] = ("user",)

    @model_validator(mode="after")
    def _one_way(self) -> JobsTable:
        if sum((self.per_hour is not None, self.every is not None, bool(self.at))) != 1:
            raise ValueError("say when they come with one of per_hour, every and at")
        if (self.lasts is None) == (self.lasts_between is None):
            raise ValueError("say how long they run with one of lasts and lasts_between")
        if self.lasts_between is not None and self.lasts_between[0] > self.lasts_between[1]:
            raise ValueError("the first number of lasts_between is the smaller one")
        if self.until is not None and self.until <= self.begin:
            raise ValueError("until comes after from")
        if self.at and (self.begin or self.until is not None):
            raise ValueError("at says when they come: leave out from and until")
        return self


class FaultTable(_Table):
    """Something that goes wrong."""

    kind: Literal["no_capacity", "slow_boot", "spot_ends", "outage"]
    provider: str = Field("*", max_length=40)
    offer: str = Field("*", max_length=200, description="with * as wildcard, e.g. aws/us-east-1*")
    begin: Duration = Field(0.0, alias="from")
    lasts: Duration | None = Field(None, alias="for", description="none: until the end")
    factor: Annotated[float, Field(ge=1, le=1000)] = Field(3.0, description="of slow_boot: so much slower")
    per_hour: Annotated[float, Field(gt=0, le=60)] = Field(0.1, description="of spot_ends: for each machine")

    def holds(self, at_s: float, provider: str, offer: str = "") -> bool:
        """Whether it holds at this time for this offer, or for all of the provider."""
        if at_s < self.begin or (self.lasts is not None and at_s >= self.begin + self.lasts):
            return False
        return fnmatchcase(provider, self.provider) and (not offer or fnmatchcase(offer, self.offer))

    def concerns(self, provider: str, offer: str, *, spot: bool) -> bool:
        """Whether this offer is among those of the fault, at whatever time."""
        if self.kind == "outage":
            return fnmatchcase(provider, self.provider)
        return self.holds(self.begin, provider, offer) and (spot or self.kind != "spot_ends")

    @property
    def words(self) -> str:
        """What it is, for people."""
        about = self.offer if self.offer != "*" else f"{self.provider}/*"
        return f"[[faults]] {self.kind} of {about}"

    @property
    def edges(self) -> tuple[float, ...]:
        """When it begins and ends."""
        return (self.begin,) if self.lasts is None else (self.begin, self.begin + self.lasts)


class CloudTable(_Table):
    """How clouds are when all is well."""

    boot: Span = Field((60.0, 180.0), description="from the create call to READY, at least and at most")

    @model_validator(mode="after")
    def _ordered(self) -> CloudTable:
        if self.boot[0] > self.boot[1]:
            raise ValueError("the first number of boot is the smaller one")
        return self


class Scenario(_Table):
    """A load file, or a file of faults.

    Attributes:
        lasts: for how long jobs come.
        targets: by pool that people drive, its GPUs.
    """

    lasts: Annotated[float, BeforeValidator(seconds), Field(gt=0, le=DAYS_MAX * DAY_S)] = DAY_S
    jobs: Annotated[tuple[JobsTable, ...], Field(max_length=1000)] = ()
    faults: Annotated[tuple[FaultTable, ...], Field(max_length=1000)] = ()
    cloud: CloudTable = CloudTable()
    targets: dict[str, Annotated[int, Field(ge=0, le=160_000)]] = {}

    @model_validator(mode="after")
    def _in_time(self) -> Scenario:
        for number, table in enumerate(self.jobs):
            if table.begin >= self.lasts or any(at_s > self.lasts for at_s in table.at):
                raise ValueError(f"jobs[{number}] come after the load is over: make lasts longer")
        return self


class TooManyJobs(ValueError):
    """The load is too large."""


def jobs_of(scenario: Scenario, seed: int) -> list[JobSpec]:
    """All jobs in the order in which they come. Raises TooManyJobs."""
    found: list[JobSpec] = []
    for number, table in enumerate(scenario.jobs):
        rng = random.Random(f"{seed}:{number}")
        for at_s in _times(table, scenario.lasts, rng):
            for _ in range(table.count):
                if len(found) >= JOBS_MAX:
                    raise TooManyJobs(f"more than {JOBS_MAX} jobs come: at most so many are simulated")
                low, high = table.lasts_between or (table.lasts or 0.0, table.lasts or 0.0)
                run_s = max(1.0, rng.uniform(low, high))
                found.append(
                    JobSpec(
                        "", rng.choice(table.users), table.pool, at_s, table.nodes, run_s,
                        table.cpus_per_node, table.gpus_per_node,
                    )
                )  # fmt: skip
    return numbered(found)


def numbered(jobs: Iterable[JobSpec]) -> list[JobSpec]:
    """In the order in which they come, with ids that say it."""
    ordered = sorted(jobs, key=lambda job: job.at_s)
    return [
        JobSpec(str(number), job.user, job.pool, job.at_s, job.nodes, job.run_s, job.cpus, job.gpus)
        for number, job in enumerate(ordered, 1)
    ]


def _times(table: JobsTable, lasts_s: float, rng: random.Random) -> Iterator[float]:
    end_s = min(lasts_s, table.until if table.until is not None else lasts_s)
    if table.at:
        yield from table.at
        return
    at_s = table.begin
    if table.per_hour is not None:
        at_s += rng.expovariate(table.per_hour / 3600)
    while at_s < end_s:
        yield at_s
        at_s += table.every if table.every is not None else rng.expovariate((table.per_hour or 1.0) / 3600)
