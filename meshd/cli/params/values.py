"""Types of option values: durations, moments, numbers, prices, names. Each says what to write instead of a fault."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Callback of an option: a number with the unit ms, s, m, h or d, as seconds. Without a unit it is seconds."""
    match = _DURATION.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration: write 90, 90s, 30m or 2h")
    return float(match["number"]) * _SECONDS[match["unit"]]


def optional_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """As `duration`; None stays None."""
    return None if value is None else duration(ctx, param, value)


def past_moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """Callback of an option: a moment in the past, in ISO 8601. Without a time zone it is UTC."""
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a moment: write 2026-11-28 or 2026-11-28T09:30, in UTC") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at > datetime.now(UTC):
        raise click.BadParameter(f"{value} is in the future (without a time zone it is read as UTC)")
    return at


def past_or_ago(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Callback of an option: a moment in the past, in ISO 8601, or how long ago it was: 30m."""
    if value is None or not (match := _DURATION.fullmatch(value)):
        return past_moment(ctx, param, value)
    try:
        return datetime.now(UTC) - timedelta(seconds=float(match["number"]) * _SECONDS[match["unit"]])
    except OverflowError:
        raise click.BadParameter(f"{value!r} is too long ago") from None


class WholeNumber(click.ParamType[int]):
    """A whole number. click's own IntRange prints its limits as formulas.

    Args:
        least: the smallest number allowed.
        most: the largest number allowed; None for no limit.
    """

    name = "number"

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number.

        Raises:
            click.BadParameter: not a whole number, too small, or too large.
        """
        text = str(value).strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        number = int(text)
        if number < self._least:
            self.fail(f"{number} is too small: at least {self._least}", param, ctx)
        if self._most is not None and number > self._most:
            self.fail(f"{number} is too large: at most {self._most}", param, ctx)
        return number


class UsdLimit(click.ParamType[float]):
    """A limit in USD: a finite number above 0."""

    name = "usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The amount.

        Raises:
            click.BadParameter: not a number above 0; also `nan` and `inf`, which Python reads as numbers.
        """
        try:
            usd = float(str(value).removeprefix("$"))
        except ValueError:
            usd = math.nan
        if not math.isfinite(usd) or usd <= 0:
            self.fail(f"{value!r} is not a price: write a number of USD above 0, e.g. 2.5", param, ctx)
        return usd


class NonEmpty(click.ParamType[str]):
    """A name. An empty one, e.g. from a shell variable that is not set, would select everything: it is refused."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name.

        Raises:
            click.BadParameter: the name is empty.
        """
        if not str(value).strip():
            self.fail("it is empty", param, ctx)
        return str(value)
