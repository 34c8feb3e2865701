"""Cooldowns: what nothing is rented from for a while, until when, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from meshd.provider_api import Offer


class CooldownKey(str):
    """What cools down, in the form that the journal and its events have.

    The forms are `offer:KEY`, `provider:NAME`, `pool:POOL`, `pool:POOL@PROVIDER`, `pool:POOL@PROVIDER/REGION`, and
    `replace:POOL` for the replacements of a pool's unfit nodes. A provider or region that failed for one pool may be
    well for another one: the pools have images and scripts of their own.
    """

    __slots__ = ()

    @classmethod
    def of_offer(cls, offer: Offer) -> CooldownKey:
        """An offer, for all pools."""
        return cls(f"offer:{offer.key}")

    @classmethod
    def of_provider(cls, provider: str) -> CooldownKey:
        """A provider, for all pools."""
        return cls(f"provider:{provider}")

    @classmethod
    def of_pool(cls, pool: str) -> CooldownKey:
        """Everything that is rented for a pool."""
        return cls(f"pool:{pool}")

    @classmethod
    def of_place(cls, pool: str, provider: str, region: str = "") -> CooldownKey:
        """A provider, or one region of it, for one pool."""
        return cls(f"pool:{pool}@{provider}/{region}" if region else f"pool:{pool}@{provider}")

    @classmethod
    def of_replacements(cls, pool: str) -> CooldownKey:
        """The replacements of a pool's unfit nodes."""
        return cls(f"replace:{pool}")

    @property
    def is_offer(self) -> bool:
        """Whether it is the key of one offer."""
        return self.startswith("offer:")

    @property
    def pool(self) -> str:
        """The only pool that it affects; "" when it affects all pools."""
        kind, _, name = self.partition(":")
        return name.partition("@")[0] if kind in {"pool", "replace"} else ""

    @property
    def words(self) -> str:
        """What cools down, for people: "aws/us-east-1a/p5.48xlarge", "aws us-east-1"."""
        name = self.partition(":")[2]
        _, at, place = name.partition("@")
        return place.replace("/", " ") if at else name


def scopes(pool: str, offer: Offer) -> tuple[CooldownKey, ...]:
    """The keys that count a failure of a machine of this offer and pool, from the narrowest to the widest."""
    return (
        CooldownKey.of_offer(offer),
        CooldownKey.of_place(pool, offer.provider, offer.region),
        CooldownKey.of_place(pool, offer.provider),
        CooldownKey.of_pool(pool),
    )


class CooldownCause(StrEnum):
    """Why something cools down."""

    PAUSE = "pause"
    """A rate limit or a passing fault: orders keep their place until it ends."""
    REFUSED = "refused"
    """No capacity, no quota, or refused credentials: orders go on to the next offer."""
    UNFIT = "unfit"
    """A node of the pool was replaced because it was unfit."""
    BOOTS = "boots"
    """Machines were rented and failed before they were READY."""
    ENDED = "ended"
    """The cloud ended machines and said why: no capacity, no quota, a broken image."""


TRIED_ALONE = frozenset({CooldownCause.BOOTS, CooldownCause.ENDED})
"""After a cooldown for these causes one machine is tried first; once it is READY, the others follow."""


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A cooldown: of an offer without capacity, or of a pool whose machines do not boot.

    Attributes:
        strikes: consecutive cooldowns of this key; each makes the next one longer.
    """

    key: CooldownKey
    until: datetime
    reason: str
    strikes: int = 1
    cause: CooldownCause = CooldownCause.REFUSED
