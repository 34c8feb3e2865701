"""`meshctl offers`: lists what the clouds rent out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from difflib import get_close_matches
from typing import Literal

import click

from meshd import gpus
from meshd.api import endpoints
from meshd.api.schema import OffersQuery, OffersView
from meshd.cli.errors import CliError, ExitCode
from meshd.cli.params.options import (
    OutputFormat,
    gpu_option,
    output_option,
    provider_option,
    region_option,
    verbose_option,
)
from meshd.cli.params.values import UsdLimit, WholeNumber
from meshd.cli.render.offers import offers
from meshd.cli.render.terminal import show, spinner
from meshd.cli.session import Session, print_json

EXAMPLES = """\b
Examples:
  meshctl offers --gpu h100                          every H100, cheapest GPU first
  meshctl offers --gpu h100-sxm --gpus-per-node 8    whole machines with NVLink
  meshctl offers --min-vram 80 --max-price 2.5       80 GB or more per GPU for at most $2.50
  meshctl offers --gpus-per-node 0 --arch arm64      machines without GPUs
  meshctl offers --all -o json --limit 100000        everything, for a program
"""


@click.command("offers", epilog=EXAMPLES)
@gpu_option("Only this GPU model, in any spelling. h100 includes h100-sxm, h100-pcie and h100-nvl.")
@click.option(
    "--gpus-per-node", metavar="N", type=WholeNumber(0, 16), help="Only machines with exactly N GPUs; 0: without GPUs."
)
@provider_option("Only of this cloud; may be repeated.", multiple=True)
@region_option("Only in this region or zone; may be repeated.")
@click.option("--spot/--on-demand", default=None, help="Only spot, or only on demand.")
@click.option("--pods/--no-pods", default=None, help="Only pods, or only machines that are no pods.")
@click.option("--max-price", metavar="USD", type=UsdLimit(), help="The highest price per GPU-hour.")
@click.option("--min-vram", metavar="GB", type=WholeNumber(0), default=0, help="The least memory of one GPU, as sold.")
@click.option("--arch", type=click.Choice(["x86_64", "arm64"]), help="Only this CPU architecture.")
@click.option(
    "--all", "everything", is_flag=True, help="Also offers that cannot be rented now, e.g. without free capacity."
)
@click.option("--zones", is_flag=True, help="One row for each zone, also where zones cost the same.")
@click.option(
    "--sort", type=click.Choice(["price", "provider"]), default="price", show_default=True, help="The order of rows."
)
@click.option(
    "-n", "--limit", metavar="N", type=WholeNumber(1, 100_000), default=40, show_default=True, help="The most rows."
)
@click.option("--refresh", is_flag=True, help="Ask the clouds again first; takes some seconds.")
@verbose_option
@output_option(OutputFormat.WIDE, OutputFormat.NAME)
@click.pass_obj
def command(
    session: Session,
    *,
    gpu: str | None,
    gpus_per_node: int | None,
    provider: tuple[str, ...],
    region: tuple[str, ...],
    spot: bool | None,
    pods: bool | None,
    max_price: float | None,
    min_vram: int,
    arch: Literal["x86_64", "arm64"] | None,
    everything: bool,
    zones: bool,
    sort: Literal["price", "provider"],
    limit: int,
    refresh: bool,
    verbose: bool,
    output: OutputFormat,
) -> None:
    """List what the clouds rent out right now, cheapest GPU first.

    FREE shows whether the cloud has free capacity: yes, no, or ? where the cloud says so only when it gets an order.
    PRICED is the age of the price. Zones of a region with the same price share a row; --zones and -o json show each.
    This command rents nothing.
    """
    query = OffersQuery(
        gpu=gpu, gpus_per_node=gpus_per_node, provider=provider, region=region, spot=spot, pods=pods,
        max_usd_per_gpu_hour=max_price, gpu_memory_min_gib=min_vram, arch=arch, all=everything, sort=sort,
        limit=limit, fold=not (zones or output in {OutputFormat.JSON, OutputFormat.NAME}), refresh=refresh,
    )  # fmt: skip
    with spinner("asking the clouds ...") if refresh else nullcontext():
        view = session.ask(lambda head: head.call(endpoints.OFFERS, query))
    _check_names(view, query)
    if output is OutputFormat.JSON:
        print_json(view)
    elif output is OutputFormat.NAME:
        for row in view.offers:
            click.echo(row.offer)
    else:
        show(*offers(view, query, verbose=verbose), wide=output is OutputFormat.WIDE)


def _check_names(view: OffersView, query: OffersQuery) -> None:
    """Refuse a provider, region or GPU model that does not exist: an empty list would look like sold out.

    A region is refused only if every enabled provider was read. A GPU model is refused only if meshd does not know it
    either.

    Raises:
        CliError: with similar names, or with all names.
    """
    enabled = [source.name.removeprefix("offers:") for source in view.sources]
    for name in query.provider:
        if name not in enabled:
            raise _unknown(f"no provider {name} is enabled", name, enabled)
    if not view.total:
        return
    for name in query.region:
        if name not in view.regions and all(source.ok for source in view.sources):
            raise _unknown(f"there are no offers in {name}", name, view.regions)
    if query.gpu and not any(gpus.related(query.gpu, model) for model in {*view.gpus, *gpus.MODELS}):
        models = sorted({*view.gpus, *(model.partition("-")[0] for model in view.gpus)})
        raise _unknown(f"there is no GPU {query.gpu}", query.gpu, models)


def _unknown(text: str, name: str, known: Iterable[str]) -> CliError:
    names = list(known)
    near = get_close_matches(name, names, n=4, cutoff=0.6)
    cure = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names[:20]) or 'none'}"
    return CliError(text, cure, code=ExitCode.USAGE, kind="unknown")
