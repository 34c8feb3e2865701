"""The options that `scale` and `plan` share: which machines to rent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal

import click

from meshd.api.schema import ScaleRequest
from meshd.cli.params.options import gpu_option, pool_option, provider_option, region_option
from meshd.cli.params.values import UsdLimit, WholeNumber

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """The options of one call. A field has the option's name; it is None or empty where the option was not given."""

    pool: str | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    provider: str | None = None
    region: tuple[str, ...] = ()
    spot: Literal["never", "if_cheaper", "prefer", "only"] | None = None
    pods: Literal["never", "allow", "only"] | None = None
    spread: bool | None = None
    max_price: float | None = None
    max_total: float | None = None
    max_overshoot: int | None = None
    unset: tuple[str, ...] = ()
    reset: bool = False

    @property
    def given(self) -> list[str]:
        """The options that were given, as the user writes them."""
        none = ScaleOptions()
        changed = (f.name for f in fields(self) if getattr(self, f.name) != getattr(none, f.name))
        return [_option(name) for name in changed]

    def request(self, gpus: int) -> ScaleRequest:
        """The request for a dry run. It has only the options that were given: the others keep their last value.

        Args:
            gpus: the target.

        Raises:
            click.UsageError: an option was both given and named by --unset.
            pydantic.ValidationError: a value that no request may have.
        """
        given: dict[str, Any] = {}
        for name, field in _FIELDS.items():
            value = getattr(self, name)
            is_given = value is not None and value != ()
            if _option(name).removeprefix("--") in self.unset:
                if is_given:
                    raise click.UsageError(f"{_option(name)} does not go with --unset of the same option")
                given[field] = _UNSET.get(field)
            elif is_given:
                given[field] = value
        if self.reset:
            given["reset"] = True
        if self.pool is not None:
            given["pool"] = self.pool
        return ScaleRequest(gpus=gpus, dry_run=True, **given)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_FIELDS = {
    "gpu": "gpu", "gpus_per_node": "gpus_per_node", "provider": "provider", "region": "regions", "spot": "spot",
    "pods": "pods", "spread": "spread", "max_price": "max_usd_per_gpu_hour", "max_total": "max_usd_per_hour",
    "max_overshoot": "overshoot_max_gpus",
}  # fmt: skip
"""Each option with the field of ScaleRequest that it sets."""
_UNSET: dict[str, Any] = {"regions": (), "spread": False}
"""The value that unsets a field, where it is not None."""


_USD = UsdLimit()
_OPTIONS = (
    pool_option("The pool. Needed where there are several pools and --gpu does not select one."),
    gpu_option("Rent only this GPU model, e.g. h100-sxm. Without --pool it also selects the pool."),
    click.option("--gpus-per-node", metavar="N", type=WholeNumber(0, 16), help="Rent machines with exactly N GPUs."),
    provider_option("Rent from this cloud only."),
    region_option("Rent in this region or zone only; may be repeated."),
    click.option(
        "--spot",
        type=click.Choice(["never", "if_cheaper", "prefer", "only"]),
        help="Spot machines are cheaper, but the cloud may take them back. if_cheaper: by price alone. "
        "prefer: spot where there is any.",
    ),
    click.option(
        "--pods",
        type=click.Choice(["never", "allow", "only"]),
        help="Pods are containers without systemd, and often without a TUN device: docs/providers.md has their limits.",
    ),
    click.option(
        "--spread/--no-spread",
        default=None,
        help="Allow new machines in several clouds and regions. By default all are in one, for a fast network.",
    ),
    click.option("--max-price", metavar="USD", type=_USD, help="The highest price per GPU-hour."),
    click.option("--max-total", metavar="USD", type=_USD, help="The most that the pool's machines may cost per hour."),
    click.option(
        "--max-overshoot",
        metavar="N",
        type=WholeNumber(0),
        help="Rent at most N GPUs more than asked for. By default as many as the cheapest machines bring.",
    ),
    click.option(
        "--unset",
        metavar="OPTION",
        multiple=True,
        type=click.Choice([_option(name).removeprefix("--") for name in _FIELDS]),
        help="Drop this option of the last target, e.g. max-price; may be repeated.",
    ),
    click.option("--reset", is_flag=True, help="Drop all options of the last target that are not given here."),
)


def scale_options(command: Command) -> Command:
    """All of these options: the command gets them as one `options`, a ScaleOptions."""

    @wraps(command)
    def with_options(*args: Any, **kwargs: Any) -> Any:
        options = ScaleOptions(**{field.name: kwargs.pop(field.name) for field in fields(ScaleOptions)})
        return command(*args, options=options, **kwargs)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options
