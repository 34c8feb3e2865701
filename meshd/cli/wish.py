"""The options that say which machines are wanted; `scale` and `plan` have the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal

import click

from meshd.api.schema import ScaleRequest
from meshd.cli.params import Usd, Whole, gpu_option, pool_option, provider_option, region_option

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
    spread: bool | None = None
    max_price: float | None = None
    max_total: float | None = None
    max_overshoot: int | None = None
    unset: tuple[str, ...] = ()
    reset: bool = False

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        plain = Wish()
        changed = (f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name))
        return [f"--{name.replace('_', '-')}" for name in changed]

    def request(self, gpus: int) -> ScaleRequest:
        """A dry run for so many GPUs. Only what was given is in it: the rest holds on from the target before.

        Raises:
            click.UsageError: an option is both given and taken out.
            pydantic.ValidationError: a value that no request may have.
        """
        given: dict[str, Any] = {}
        for option, field in _FIELDS.items():
            value = getattr(self, option)
            named = value is not None and value != ()
            if option.replace("_", "-") in self.unset:
                if named:
                    raise click.UsageError(f"--{option.replace('_', '-')} is given and taken out by --unset")
                given[field] = _UNSET.get(field)
            elif named:
                given[field] = value
        if self.reset:
            given["reset"] = True
        if self.pool is not None:
            given["pool"] = self.pool
        return ScaleRequest(gpus=gpus, dry_run=True, **given)


_FIELDS = {
    "gpu": "gpu", "gpus_per_node": "gpus_per_node", "provider": "provider", "region": "regions", "spot": "spot",
    "spread": "spread", "max_price": "max_usd_per_gpu_hour", "max_total": "max_usd_per_hour",
    "max_overshoot": "overshoot_max_gpus",
}  # fmt: skip
"""Each option with the field of a ScaleRequest that it sets."""
_UNSET: dict[str, Any] = {"regions": (), "spread": False}
"""What stands for nothing, where it is not None."""


_USD = Usd()
_OPTIONS = (
    pool_option("Which pool; needed where there are several and --gpu does not tell."),
    gpu_option("Only this GPU model of the pool, e.g. h100-sxm; chooses the pool where none is named."),
    click.option("--gpus-per-node", metavar="N", type=Whole(0, 16), help="Exactly so many GPUs in each new machine."),
    provider_option("Rent from this cloud only."),
    region_option("Rent in this region or zone only; may be repeated."),
    click.option(
        "--spot",
        type=click.Choice(["never", "prefer", "only"]),
        help="Spot machines are cheaper and may be taken away at any time. prefer: spot where there is any.",
    ),
    click.option(
        "--spread/--no-spread",
        default=None,
        help="Let the new machines be of several clouds and regions. Without it all are of one, for a fast network.",
    ),
    click.option("--max-price", metavar="USD", type=_USD, help="Rent nothing dearer per GPU-hour."),
    click.option("--max-total", metavar="USD", type=_USD, help="The most that the pool's machines may cost per hour."),
    click.option(
        "--max-overshoot",
        metavar="N",
        type=Whole(0),
        help="Take at most N GPUs more than asked for; without it as many as the cheapest machines have.",
    ),
    click.option(
        "--unset",
        metavar="OPTION",
        multiple=True,
        type=click.Choice([name.replace("_", "-") for name in _FIELDS]),
        help="Take out this option of the target before, e.g. max-price; may be repeated.",
    ),
    click.option("--reset", is_flag=True, help="Take out all options of the target before that are not given here."),
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
