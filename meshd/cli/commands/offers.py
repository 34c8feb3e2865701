"""`meshctl offers`: what the clouds rent."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import click

from meshd.api import endpoints
from meshd.api.schema import OffersQuery
from meshd.cli import render
from meshd.cli.offer_names import refuse_mistyped
from meshd.cli.outputs import Output, outputs_option, verbose_option
from meshd.cli.params import Usd, Whole, gpu_option, provider_option, region_option
from meshd.cli.render_offers import offers
from meshd.cli.session import Session, print_json

EXAMPLES = """\b
Examples:
  meshctl offers --gpu h100                          every H100, cheapest GPU first
  meshctl offers --gpu h100-sxm --gpus-per-node 8    whole machines with NVLink
  meshctl offers --min-vram 80 --max-price 2.5       80 GiB or more per GPU for at most $2.50
  meshctl offers --gpus-per-node 0 --arch arm64      machines without GPUs
  meshctl offers --all -o json --limit 100000        everything, for a program
"""


@click.command("offers", epilog=EXAMPLES)
@gpu_option("Only this GPU model, in any spelling; h100 takes h100-sxm, h100-pcie and h100-nvl.")
@click.option(
    "--gpus-per-node", metavar="N", type=Whole(0, 16), help="Exactly so many GPUs in one machine; 0: CPU only."
)
@provider_option("Only this cloud's; may be repeated.", multiple=True)
@region_option("Only in this region or zone; may be repeated.")
@click.option("--spot/--on-demand", default=None, help="Only spot, or only on demand.")
@click.option("--max-price", metavar="USD", type=Usd(), help="Per GPU and hour, at most.")
@click.option("--min-vram", metavar="GIB", type=Whole(0), default=0, help="Memory of one GPU, at least.")
@click.option("--arch", type=click.Choice(["x86_64", "arm64"]), help="CPU architecture.")
@click.option("--all", "everything", is_flag=True, help="Also what cannot be rented now: no capacity, cooling down.")
@click.option("--zones", is_flag=True, help="A row for each zone, not one for those that cost the same.")
@click.option("--sort", type=click.Choice(["price", "provider"]), default="price", show_default=True)
@click.option(
    "-n", "--limit", metavar="N", type=Whole(1, 100_000), default=40, show_default=True, help="How many rows."
)
@click.option("--refresh", is_flag=True, help="Have the clouds asked anew first, which takes some seconds.")
@verbose_option
@outputs_option(Output.WIDE, Output.NAME)
@click.pass_obj
def command(
    session: Session,
    *,
    gpu: str | None,
    gpus_per_node: int | None,
    provider: tuple[str, ...],
    region: tuple[str, ...],
    spot: bool | None,
    max_price: float | None,
    min_vram: int,
    arch: Literal["x86_64", "arm64"] | None,
    everything: bool,
    zones: bool,
    sort: Literal["price", "provider"],
    limit: int,
    refresh: bool,
    verbose: bool,
    output: Output,
) -> None:
    """List what the clouds rent right now, the cheapest GPU first.

    FREE is what the cloud says of free capacity: yes, no, or ? where it does not tell before one asks. PRICED is the
    age of the price. The zones of a region in which a type costs the same are one row; --zones and -o json show each.
    Nothing is rented by looking.
    """
    query = OffersQuery(
        gpu=gpu, gpus_per_node=gpus_per_node, provider=provider, region=region, spot=spot,
        max_usd_per_gpu_hour=max_price, gpu_memory_min_gib=min_vram, arch=arch, all=everything, sort=sort,
        limit=limit, fold=not (zones or output in {Output.JSON, Output.NAME}), refresh=refresh,
    )  # fmt: skip
    with render.busy("having the clouds asked ...") if refresh else nullcontext():
        view = session.ask(lambda head: head.call(endpoints.OFFERS, query))
    refuse_mistyped(view, query)
    if output is Output.JSON:
        print_json(view)
    elif output is Output.NAME:
        for row in view.offers:
            click.echo(row.offer)
    else:
        render.show(*offers(view, query, full=verbose), whole=output is Output.WIDE)
