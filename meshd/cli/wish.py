"""The options that say which machines are wanted; `scale` and `plan` have the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal

import click

from meshd.api.schema import ScaleRequest
from meshd.cli.params import Usd, gpu_option, pool_option, provider_option, region_option

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for besides the number of GPUs: a field for each option, None or empty without it."""

    pool: str | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    provider: str | None = None
    region: tuple[str, ...] = ()
    spot: Literal["never", "prefer", "only"] | None = None
    spread: bool = False
    max_price: float | None = None
    max_total: float | None = None
    max_overshoot: int | None = None

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        plain = Wish()
        changed = (f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name))
        return [f"--{name.replace('_', '-')}" for name in changed]

    def request(self, gpus: int) -> ScaleRequest:
        """A dry run for so many GPUs.

        Raises:
            pydantic.ValidationError: a value that no request may have.
        """
        return ScaleRequest(
            gpus=gpus, pool=self.pool, gpu=self.gpu, gpus_per_node=self.gpus_per_node, provider=self.provider,
            regions=self.region, spot=self.spot, spread=self.spread, max_usd_per_gpu_hour=self.max_price,
            max_usd_per_hour=self.max_total, overshoot_max_gpus=self.max_overshoot, dry_run=True,
        )  # fmt: skip


_USD = Usd()
_OPTIONS = (
    pool_option("Which pool; needed where there are several and --gpu does not tell."),
    gpu_option("Only this GPU model of the pool, e.g. h100-sxm; chooses the pool where none is named."),
    click.option(
        "--gpus-per-node", metavar="N", type=click.IntRange(0, 16), help="Exactly so many GPUs in each new machine."
    ),
    provider_option("Rent from this cloud only."),
    region_option("Rent in this region or zone only; may be repeated."),
    click.option(
        "--spot",
        type=click.Choice(["never", "prefer", "only"]),
        help="Spot machines are cheaper and may be taken away at any time. prefer: spot where there is any.",
    ),
    click.option(
        "--spread",
        is_flag=True,
        help="Let the new machines be of several clouds and regions. Without it all are of one, for a fast network.",
    ),
    click.option("--max-price", metavar="USD", type=_USD, help="Rent nothing dearer per GPU-hour."),
    click.option("--max-total", metavar="USD", type=_USD, help="The most that the pool's machines may cost per hour."),
    click.option(
        "--max-overshoot",
        metavar="N",
        type=click.IntRange(min=0),
        help="Take at most N GPUs more than asked for; without it as many as the cheapest machines have.",
    ),
)


def wish_options(command: Command) -> Command:
    """All of them; the command gets them as one `wish`."""

    @wraps(command)
    def with_wish(*args: Any, **kwargs: Any) -> Any:
        wish = Wish(**{field.name: kwargs.pop(field.name) for field in fields(Wish)})
        return command(*args, wish=wish, **kwargs)

    for option in reversed(_OPTIONS):
        with_wish = option(with_wish)
    return with_wish
