"""Prices that are old or cannot be read. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem
from meshd.model.desired import Desired
from meshd.model.machine import Machine
from meshd.plan.prices import refresh_words, rented_by_stale


def stale(desired: Desired, machines: Iterable[Machine]) -> Iterable[ProblemView]:
    """Pools whose limit in USD was held against old prices."""
    for pool, found in rented_by_stale(machines, desired).items():
        for (provider, date), names in sorted(found.items()):
            some = "1 machine was" if len(names) == 1 else f"{len(names)} machines were"
            text = f"{some} rented within the limit by prices of {provider} of {date}: the bill may be higher"
            yield problem(ProblemCode.PRICES_STALE, "warning", text, refresh_words(provider), pool=pool)


def files(damaged: Mapping[str, str]) -> Iterable[ProblemView]:
    """Files of fetched prices that cannot be read, each with why: meshd uses older prices."""
    for provider, why in sorted(damaged.items()):
        text = f"{why}; meshd uses older prices of {provider}"
        cure = f"`meshctl prices refresh {provider}` writes the file again"
        yield problem(ProblemCode.PRICE_FILE_UNREADABLE, "warning", text, cure)
