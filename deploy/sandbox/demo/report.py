"""The closing tables: how long each step of each machine took, and what it cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

SPANS: tuple[tuple[str, str, str], ...] = (
    ("launch", "requested", "booting"),
    ("boot", "booting", "joining"),
    ("join", "joining", "configuring"),
    ("conf", "configuring", "testing"),
    ("test", "testing", "ready"),
    ("READY", "requested", "ready"),
    ("leave", "draining", "terminating"),
    ("end", "terminating", "gone"),
    ("GONE", "draining", "gone"),
)
"""Column, the phase that begins it, and the phase that ends it."""

LEGEND = """\
launch: the cloud accepts it; boot: until the tailnet shows it; join: until the head accepts it; conf: munge proved,
nodes.conf published, slurmd started; test: until Slurm may use it; READY: all of that together.
leave: no job, out of Slurm; end: until the cloud says that it is gone; GONE: both together."""


@dataclass(slots=True)
class Timeline:
    """When a machine first entered each phase.

    Attributes:
        offer: the newest that it was asked for by, "PROVIDER/PLACE/TYPE".
    """

    machine: str
    offer: str = ""
    entered: dict[str, datetime] = field(default_factory=dict)

    @property
    def provider(self) -> str:
        """Whose it is."""
        return self.offer.partition("/")[0]

    @property
    def rented(self) -> bool:
        """Whether a cloud has ever accepted it."""
        return "booting" in self.entered

    def span_s(self, begin: str, end: str) -> float | None:
        """Seconds from one phase to another; a phase that was skipped counts as entered with the next one."""
        if begin not in self.entered or end not in self.entered:
            return None
        return (self.entered[end] - self.entered[begin]).total_seconds()


def timelines(events: Sequence[Mapping[str, Any]]) -> list[Timeline]:
    """The machines' timelines out of `meshctl events -o json`, in order of their names."""
    found: dict[str, Timeline] = {}
    for event in events:
        name = str(event.get("machine") or "")
        fields = event.get("fields") or {}
        phase = fields.get("phase") or ("requested" if event["kind"] == "phase" else "")
        if name and phase:
            line = found.setdefault(name, Timeline(name))
            line.offer = str(fields.get("offer") or line.offer)
            line.entered.setdefault(str(phase), datetime.fromisoformat(str(event["at"])))
    return [found[name] for name in sorted(found, key=_by_number)]


def _by_number(name: str) -> list[tuple[int, str]]:
    """Slot 10 comes after slot 9."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in name.split("-")]


@dataclass(slots=True)
class Rung:
    """One offer of the ladder, and what came of it.

    Attributes:
        rented: machines that the cloud accepted.
        unclear: create calls whose answer was lost.
        refused: how often, by kind of refusal.
    """

    offer: str
    rented: int = 0
    unclear: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def rungs(events: Sequence[Mapping[str, Any]]) -> list[Rung]:
    """The offers that were asked for, in the order in which they first answered, of `meshctl events -o json`."""
    found: dict[str, Rung] = {}
    for event in events:
        fields = event.get("fields") or {}
        offer = str(fields.get("offer") or "")
        if event["kind"] == "unclear":
            found.setdefault(offer, Rung(offer)).unclear += 1
        elif fields.get("refusal"):
            found.setdefault(offer, Rung(offer)).refused[str(fields["refusal"])] += 1
        elif fields.get("phase") == "booting":
            found.setdefault(offer, Rung(offer)).rented += 1
    return list(found.values())


def ladder_table(found: Sequence[Rung]) -> Table:
    """The offers in the order in which they were tried."""
    table = Table(title="Offers tried, in this order", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("offer", no_wrap=True)
    table.add_column("machines", justify="right")
    table.add_column("refused")
    for rung in found:
        words = [f"{count} x {kind.replace('_', ' ')}" for kind, count in rung.refused.items()]
        words += [f"{rung.unclear} x answer lost"] if rung.unclear else []
        table.add_row(rung.offer, str(rung.rented), ", ".join(words))
    return table


def machine_table(lines: Sequence[Timeline]) -> Table:
    """Seconds per step, a machine a row, and the medians."""
    table = Table(
        title="Seconds per step of each machine, by meshd's journal", box=box.SIMPLE_HEAD,
        title_justify="left", padding=0, pad_edge=False,
    )  # fmt: skip
    table.add_column("machine", no_wrap=True)
    table.add_column("provider", no_wrap=True)
    for title, _, _ in SPANS:
        table.add_column(title, justify="right")
    for line in lines:
        spans = (_cell(line.span_s(begin, end)) for _, begin, end in SPANS)
        table.add_row(line.machine, line.provider, *spans)
    if len(lines) > 1:
        table.add_section()
        columns = [[s for line in lines if (s := line.span_s(begin, end)) is not None] for _, begin, end in SPANS]
        table.add_row("median", "", *(_cell(median(column) if column else None) for column in columns))
    return table


def stage_table(stages: Sequence[tuple[str, float]]) -> Table:
    """How long the demonstration itself took."""
    table = Table(title="Stages", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    for title, took_s in stages:
        table.add_row(title, f"{took_s:.1f}")
    table.add_section()
    table.add_row("all", f"{sum(took_s for _, took_s in stages):.1f}")
    return table


@dataclass(frozen=True, slots=True)
class Totals:
    """What the whole took.

    Attributes:
        reconfigures_up: of Slurm, while machines joined.
        reconfigures_down: of Slurm, while they left.
        usd_meshd: what meshd thinks that it spent.
        usd_cloud: what the clouds would bill, each machine's time rounded up.
        machines: how many were rented in all.
        daemon_mib: resident memory of meshd.
    """

    reconfigures_up: int
    reconfigures_down: int | None
    usd_meshd: float
    usd_cloud: float
    machines: int
    daemon_mib: float

    def table(self) -> Table:
        """For people."""
        table = Table(title="Totals", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_row("machines rented", str(self.machines))
        table.add_row("reconfigures of Slurm, up", str(self.reconfigures_up))
        if self.reconfigures_down is not None:
            table.add_row("reconfigures of Slurm, down", str(self.reconfigures_down))
        table.add_row("meshd's resident memory", f"{self.daemon_mib:.0f} MiB")
        table.add_row("would have cost, by the clouds' invoices", f"${self.usd_cloud:.4f}")
        table.add_row("would have cost, by meshd's journal", f"${self.usd_meshd:.4f}")
        return table


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"
