"""What is left alone for a while, until when, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from meshd.provider_api import Offer


class CooldownKey(str):
    """What cools down. Its text is in the journal and in events.

    `offer:KEY`, `provider:NAME`, `pool:POOL`, a place as one pool uses it (`pool:POOL@aws`, `pool:POOL@aws/us-east-1`),
    and `replace:POOL` for the replacements of a pool's unfit nodes.

    Regions and providers are of one pool: what breaks one pool's machines there (its image, its script) need not break
    another's.
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
        """A pool: nothing is rented for it."""
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
        """It is an offer's."""
        return self.startswith("offer:")

    @property
    def pool(self) -> str:
        """The pool that it is about alone; "" when it is about others too."""
        kind, _, name = self.partition(":")
        return name.partition("@")[0] if kind in {"pool", "replace"} else ""

    @property
    def words(self) -> str:
        """What cools down, for people: "aws/us-east-1a/p5.48xlarge", "aws us-east-1"."""
        name = self.partition(":")[2]
        _, at, place = name.partition("@")
        return place.replace("/", " ") if at else name


def scopes(pool: str, offer: Offer) -> tuple[CooldownKey, ...]:
    """Keys of all that a machine of this offer and pool belongs to, the narrowest first."""
    return (
        CooldownKey.of_offer(offer),
        CooldownKey.of_place(pool, offer.provider, offer.region),
        CooldownKey.of_place(pool, offer.provider),
        CooldownKey.of_pool(pool),
    )


class CooldownCause(StrEnum):
    """Why something is left alone."""

    PAUSE = "pause"
    """It said when to come again, or stumbled: orders keep their place until then."""
    REFUSED = "refused"
    """No: no capacity, no quota, not with these credentials. Orders go on to the next offer."""
    UNFIT = "unfit"
    """A node of it was replaced because it was unfit."""
    BOOTS = "boots"
    """Its machines were rented and failed before they were READY."""
    ENDED = "ended"
    """Its machines were rented and ended by their cloud, which said why: no capacity, no quota, a broken image."""


TRIED_ALONE = frozenset({CooldownCause.BOOTS, CooldownCause.ENDED})
"""After such a cool-down one machine is tried alone, and its being READY proves it."""


@dataclass(frozen=True, slots=True)
class Cooldown:
    """Something that is left alone until a time: an offer without capacity, a pool whose machines do not boot.

    Attributes:
        strikes: how often in a row; each makes the next one longer.
    """

    key: CooldownKey
    until: datetime
    reason: str
    strikes: int = 1
    cause: CooldownCause = CooldownCause.REFUSED
