"""`meshctl simulate`: what settings would rent for a load, and how long jobs would wait."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click

from meshd import config
from meshd.cli.errors import CliError, ExitCode, interrupted
from meshd.cli.params.options import as_json_option
from meshd.cli.params.values import WholeNumber
from meshd.cli.render.terminal import show
from meshd.cli.session import Session, print_json, say
from meshd.config import Settings
from meshd.errors import ConfigError, Fault, MeshdError
from meshd.plaintext import counted
from meshd.simulate import read
from meshd.simulate.load import JobSpec, Scenario, TooManyJobs, jobs_of
from meshd.simulate.market import market_of
from meshd.simulate.render import comparison, simulation
from meshd.simulate.run import Told, simulate
from meshd.simulate.sacct import COMMAND
from meshd.simulate.schema import ComparisonView, SimulationView, TroubleRow

EXAMPLES = f"""\b
Examples:
  meshctl simulate --load week.toml                   jobs as a file describes them
  {COMMAND} >dump
  meshctl simulate --sacct dump                       the jobs of a real week
  meshctl simulate --sacct dump --compare other.toml  two settings side by side
See docs/simulate.md for the files.
"""
TOLD_EVERY_S = 5.0


@click.command("simulate", epilog=EXAMPLES)
@click.option("--load", type=click.Path(path_type=Path), metavar="FILE", help="Jobs, faults and targets, as TOML.")
@click.option("--sacct", type=click.Path(path_type=Path), metavar="FILE", help="Jobs that ran, as sacct prints them.")
@click.option("--faults", type=click.Path(path_type=Path), metavar="FILE", help="Faults and targets, as TOML.")
@click.option(
    "--offers", type=click.Path(path_type=Path), metavar="FILE",
    help="What can be rented: `meshctl offers --all -n 100000 -o json`.  [default: by fetched or shipped prices]",
)  # fmt: skip
@click.option("--compare", type=click.Path(path_type=Path), metavar="FILE", help="Other settings, for the same load.")
@click.option("--seed", type=WholeNumber(0), default=0, show_default=True, help="Of all chance.")
@as_json_option
@click.pass_obj
def command(
    session: Session,
    *,
    load: Path | None,
    sacct: Path | None,
    faults: Path | None,
    offers: Path | None,
    compare: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Show what the settings would rent for a load of jobs.

    And how long the jobs would wait, and what that would cost.

    It runs meshd's own planner and controllers over a virtual clock. It rents nothing, opens no connection, and needs
    neither root nor the daemon.
    """
    if (load is None) == (sacct is None):
        raise click.UsageError("give the jobs with one of --load and --sacct")
    try:
        given = (load, sacct, faults, offers, seed)
        first = _one(session.config, *given)
        second = _one(compare, *given) if compare is not None else None
    except ConfigError as error:
        raise CliError(str(error), code=ExitCode.FAILED, kind="bad_input") from None
    except (MeshdError, TooManyJobs) as error:
        raise CliError(str(error)) from None
    except KeyboardInterrupt:
        raise interrupted() from None
    if second is not None:
        document = ComparisonView(first=first, second=second)
        print_json(document) if as_json else show(*comparison(document))
    else:
        print_json(first) if as_json else show(*simulation(first))


def _one(
    path: Path, load: Path | None, sacct: Path | None, faults: Path | None, offers: Path | None, seed: int
) -> SimulationView:
    """Simulate the settings of a file. Raises ConfigError."""
    settings = config.load(path)
    scenario = read.scenario_of(load) if load is not None else Scenario()
    if faults is not None:
        scenario = read.with_faults(scenario, faults)
    if unknown := [name for name in scenario.targets if name not in settings.pools]:
        raise ConfigError(str(path), [Fault(f"there is no pool {unknown[0]}, and [targets] names it")])
    jobs, left_out = _jobs(settings, scenario, sacct, seed)
    market = market_of(settings, offers)
    left_out += [TroubleRow(text=text, count=count) for text, count in market.without(scenario.faults).items()]
    view = asyncio.run(simulate(settings, market, jobs, scenario, seed, _progress(str(path))))
    return view.model_copy(update={"settings": str(path), "left_out": left_out})


def _jobs(
    settings: Settings, scenario: Scenario, sacct: Path | None, seed: int
) -> tuple[list[JobSpec], list[TroubleRow]]:
    if sacct is None:
        return jobs_of(scenario, seed), []
    found = read.dump(sacct, settings)
    return found.jobs, [TroubleRow(text=text, count=count) for text, count in found.left_out.most_common()]


def _progress(about: str) -> Told:
    """Tells on stderr how far it is, once in some seconds."""
    last_s = time.monotonic()

    def told(now_s: float, ended: int, jobs: int, machines: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= TOLD_EVERY_S:
            last_s = time.monotonic()
            so_far = f"{ended} of {counted(jobs, 'job')} have ended"
            say(f"{about}: day {now_s / 86400:.1f}, {so_far}, {counted(machines, 'machine')}")

    return told
