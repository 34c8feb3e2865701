"""What a cloud may say: bounded in number, length and range, whichever adapter asked it.

A listing is complete or it is no listing: one that cannot be believed is refused as a whole, so that its source is
unknown, and nothing counts as gone. An offer that cannot be is left out: nothing is rented from it. And a fault of an
adapter that an answer brings about is that cloud's fault of the moment, and no other's.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar, cast

import structlog

from meshd.daemon.providers.guarded import Operation
from meshd.errors import MeshdError, Transient, Uncertain
from meshd.plaintext import plain, plain_lines
from meshd.price_list import PriceList
from meshd.provider_api import Billed, BilledListing, Image, Instance, Offer

T = TypeVar("T")
log = structlog.get_logger(__name__)

INSTANCES_MAX: Final = 100_000
IMAGES_MAX: Final = 10_000
BILLED_MAX: Final = 20_000
LISTINGS_MAX: Final = 1000
TAGS_MAX: Final = 64
OFFERS_MAX: Final = 50_000
PRICES_MAX: Final = 500_000
ID_MAX_CHARS: Final = 256
WORDS_MAX_CHARS: Final = 2000
CONSOLE_MAX_CHARS: Final = 64 * 1024
USD_PER_HOUR_MAX: Final = 100_000.0
GPUS_MAX: Final = 1024
MEMORY_MIB_MAX: Final = 2**32
_UNREADABLE: Final = (
    ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, AssertionError,
)  # fmt: skip


class Bounds:
    """See the module.

    It stands inside the breaker, which counts such an answer, and around the meter, which counts a fault of an adapter.

    Args:
        provider: its name in errors.
    """

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._left_out = 0

    async def call(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        """See Guard.

        Raises:
            Transient, Uncertain: the answer cannot be read, or not be believed.
        """
        try:
            answer = await ask()
        except MeshdError:
            raise
        except _UNREADABLE as error:
            log.error("vendor_answer_unreadable", provider=self._provider, operation=operation, exc_info=error)
            raise self._odd(operation, f"the answer cannot be read ({type(error).__name__})") from error
        return cast("T", self._bounded(operation, answer))

    def _bounded(self, operation: Operation, answer: Any) -> Any:
        if isinstance(answer, Instance):
            return self._instance(operation, answer)
        if isinstance(answer, Image):
            return self._image(operation, answer)
        if isinstance(answer, PriceList):
            if sum(map(len, answer.usd_per_hour.values())) > PRICES_MAX:
                raise self._odd(operation, f"it has more than {PRICES_MAX} prices")
            return answer
        if operation == "console":
            return plain_lines(answer.replace("\r\n", "\n"), CONSOLE_MAX_CHARS)
        if isinstance(answer, str):
            return plain(answer, WORDS_MAX_CHARS)
        if operation in {"list", "images"}:
            return self._listing(operation, answer)
        if operation == "billed":
            return self._billed(operation, answer)
        if operation == "offers":
            return self._offers(answer)
        return answer

    def _listing(self, operation: Operation, answer: Sequence[Any]) -> list[Any]:
        most, what = (INSTANCES_MAX, "machines") if operation == "list" else (IMAGES_MAX, "images")
        if len(answer) > most:
            raise self._odd(operation, f"the listing has {len(answer)} {what}")
        return [self._bounded(operation, one) for one in answer]

    def _instance(self, operation: Operation, one: Instance) -> Instance:
        if not one.id or len(one.id) > ID_MAX_CHARS or not one.id.isprintable():
            raise self._odd(operation, "a machine has no usable id")
        usd, born = one.usd_per_hour, one.launched_at
        changes: dict[str, Any] = {}
        if usd is not None and not _is_price(usd):
            changes["usd_per_hour"] = None
        if born is not None and (not isinstance(born, datetime) or born.tzinfo is None):
            changes["launched_at"] = None
        for name in ("token", "region", "instance_type", "public_ip", "vendor_state"):
            if (short := plain(getattr(one, name), ID_MAX_CHARS)) != getattr(one, name):
                changes[name] = short
        if (short := plain(one.reason, WORDS_MAX_CHARS)) != one.reason:
            changes["reason"] = short
        return replace(one, **changes) if changes else one

    def _image(self, operation: Operation, one: Image) -> Image:
        if not one.id or len(one.id) > ID_MAX_CHARS or not one.id.isprintable():
            raise self._odd(operation, "an image has no usable id")
        born, size, usd = one.created_at, one.size_gib, one.usd_per_month
        tags = list(one.tags.items())[:TAGS_MAX]
        return replace(
            one,
            name=plain(one.name, ID_MAX_CHARS),
            region=plain(one.region, ID_MAX_CHARS),
            arch=plain(one.arch, ID_MAX_CHARS),
            created_at=born if isinstance(born, datetime) and born.tzinfo is not None else None,
            size_gib=size if size is not None and 0 <= size <= MEMORY_MIB_MAX else None,
            usd_per_month=usd if usd is not None and _is_price(usd) else None,
            tags={plain(key, ID_MAX_CHARS): plain(value, ID_MAX_CHARS) for key, value in tags},
            reason=plain(one.reason, WORDS_MAX_CHARS),
        )

    def _billed(self, operation: Operation, listings: Sequence[BilledListing]) -> list[BilledListing]:
        if len(listings) > LISTINGS_MAX or sum(len(one.items) for one in listings) > BILLED_MAX:
            raise self._odd(operation, f"the listings have more than {BILLED_MAX} things")
        return [
            replace(
                one,
                region=plain(one.region, ID_MAX_CHARS),
                items=tuple(self._thing(operation, item) for item in one.items),
                error=plain(one.error, WORDS_MAX_CHARS),
            )
            for one in listings
        ]

    def _thing(self, operation: Operation, one: Billed) -> Billed:
        if not one.id or len(one.id) > ID_MAX_CHARS or not one.id.isprintable():
            raise self._odd(operation, f"a {one.kind.value} has no usable id")
        born, usd = one.created_at, one.usd_per_hour
        words = ("name", "region", "cluster", "machine", "attached_to", "cure")
        changes: dict[str, Any] = {name: plain(getattr(one, name), WORDS_MAX_CHARS) for name in words}
        return replace(
            one,
            **changes,
            created_at=born if isinstance(born, datetime) and born.tzinfo is not None else None,
            usd_per_hour=usd if usd is not None and _is_price(usd) else None,
        )

    def _offers(self, offers: Sequence[Offer]) -> list[Offer]:
        if len(offers) > OFFERS_MAX:
            raise self._odd("offers", f"{len(offers)} offers")
        good = [offer for offer in offers if _is_offer(offer)]
        if len(offers) - len(good) != self._left_out:
            self._left_out = len(offers) - len(good)
            log.warning("offers_left_out", provider=self._provider, count=self._left_out)
        return good

    def _odd(self, operation: Operation, text: str) -> MeshdError:
        kind = Uncertain if operation == "launch" else Transient
        return kind(f"{text}: it is not believed", provider=self._provider, operation=operation)


def _is_price(usd: float) -> bool:
    return math.isfinite(usd) and 0 <= usd <= USD_PER_HOUR_MAX


def _is_offer(offer: Offer) -> bool:
    numbers = (offer.gpus, offer.gpu_memory_gib, offer.vcpus, offer.memory_mib)
    words = (offer.region, offer.zone, offer.instance_type, offer.gpu, offer.arch, offer.capacity_hint)
    return (
        _is_price(offer.usd_per_hour)
        and all(math.isfinite(number) and 0 <= number <= MEMORY_MIB_MAX for number in numbers)
        and offer.gpus <= GPUS_MAX
        and bool(offer.instance_type)
        and all(len(word) <= ID_MAX_CHARS and word.isprintable() for word in words)
    )
