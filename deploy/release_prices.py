"""Makes a new `prices.json` for an adapter before a release: `python -m deploy.release_prices aws --config meshd.toml`.

The credentials and endpoints are those of the settings' `[providers.NAME]`; regions and types are those of the table
that ships now, so that none is lost unnoticed, and the adapter's defaults.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from meshd.config import load
from meshd.errors import ConfigError, MeshdError
from meshd.price_list import PriceList, dump, parse
from meshd.provider_api import PriceBook, ProviderContext
from providers.aws import settings as aws_settings
from providers.gce import settings as gce_settings

ROOT = Path(__file__).resolve().parents[1]
Row = tuple[str, str, str]
_USUAL = {"aws": aws_settings.GPU_TYPES, "gce": gce_settings.GPU_TYPES}


def wanted(provider: str, table: Mapping[str, Any], shipped: PriceList) -> dict[str, Any]:
    """The provider's table, widened to all that the shipped one prices, and the adapter's usual types."""
    names = {name for region in shipped.usd_per_hour.values() for name in region}
    cards = sorted(name for name in names if name.startswith("nvidia-"))
    widened = {
        **table,
        "regions": sorted(shipped.usd_per_hour),
        "instance_types": sorted({*_USUAL[provider], *names.difference(cards)}),
    }
    if provider == "gce":
        widened["attached_gpus"] = [f"n1-standard-1+{card}x1" for card in cards]
    return widened


async def fetch(provider: str, table: Mapping[str, Any]) -> PriceList:
    """Ask the vendor.

    Raises:
        ConfigError: the adapter has no price list.
        ProviderError: the vendor refused.
    """
    (point,) = entry_points(group="meshd.providers", name=provider)
    adapter = point.load()(ProviderContext("release", table, lambda: datetime.now(UTC)))
    try:
        if not isinstance(adapter, PriceBook):
            raise ConfigError(provider, ["its vendor cannot be asked for prices: edit the table by hand"])
        return await adapter.fetch_prices()
    finally:
        await adapter.aclose()


def rows(prices: PriceList) -> dict[Row, float]:
    """Each price by region, name and way to rent."""
    return {
        (region, name, way): usd
        for region, table in prices.usd_per_hour.items()
        for name, pair in table.items()
        for way, usd in zip(("on demand", "spot"), pair, strict=True)
        if usd is not None
    }


def differences(old: PriceList, new: PriceList) -> Iterator[str]:
    """What the new table changes, one line each."""
    before, after = rows(old), rows(new)
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was is None or now is None or abs(now / was - 1) > 0.01:
            yield f"{' '.join(key)}: {was or 'new'} -> {now or 'GONE'}"


def release(provider: str, table: Mapping[str, Any], path: Path, *, allow_gone: bool) -> list[str]:
    """Write the new table to `path`; returns what it changes.

    Raises:
        ConfigError: prices of the old table have no successor, and that is not allowed.
    """
    old = parse(path.read_bytes())
    new = asyncio.run(fetch(provider, table))
    changes = list(differences(old, new))
    gone = [line for line in changes if line.endswith("GONE")]
    if gone and not allow_gone:
        raise ConfigError(str(path), [*gone, "look why, and add --allow-gone if they are no longer sold"])
    note = f"{new.note} Override with the setting `prices`."
    path.write_text(dump(new.model_copy(update={"note": note})), "utf-8")
    return changes


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release_prices", description=__doc__)
    parser.add_argument("provider", choices=sorted(_USUAL))
    parser.add_argument("--config", type=Path, required=True, help="settings with the credentials")
    parser.add_argument("--allow-gone", action="store_true", help="take a table that lacks prices of the old one")
    arguments = parser.parse_args()
    provider, path = arguments.provider, ROOT / "providers" / arguments.provider / "prices.json"
    try:
        settings = load(arguments.config)
        if provider not in settings.providers:
            raise ConfigError(str(arguments.config), [f"has no [providers.{provider}]"])
        table = wanted(provider, settings.providers[provider].own(), parse(path.read_bytes()))
        for line in release(provider, table, path, allow_gone=arguments.allow_gone):
            click.echo(line)
    except MeshdError as error:
        click.echo(error, err=True)
        return 1
    click.echo(f"{path} is new: look at `git diff`, and set its date in docs/providers.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
