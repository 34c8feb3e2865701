"""After the cooldown of a place or a pool whose machines failed, one machine is tried; the others follow it. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from meshd.codes import WarningCode
from meshd.model.cooldown import TRIED_ALONE, Cooldown, CooldownKey, scopes
from meshd.model.desired import Desired, Pool
from meshd.model.machine import Machine, Phase
from meshd.model.plan import Warn
from meshd.provider_api import Offer


class TriedAlone:
    """Which offers a pool may rent now, beside the machine that proves a place or the pool.

    Args:
        desired: the cooldowns that are over.
        pool: that rents.
        machines: those of the pool that are not GONE.
        have: those that count as supply and stay.
    """

    def __init__(self, desired: Desired, pool: Pool, machines: Sequence[Machine], have: Sequence[Machine]) -> None:
        self._pool = pool
        self._machines = machines
        self._have = have
        self._over = {key: one for key, one in desired.expired_cooldowns.items() if one.cause in TRIED_ALONE}
        self._chosen: list[Offer] = []

    def hindrance(self) -> Warn | None:
        """A warning while one machine of the pool is tried; None when more may be rented, or one to be tried."""
        cooldown = self._due(CooldownKey.of_pool(self._pool.name))
        slot = self._proving_slot(cooldown, self._have) if cooldown is not None else ""
        return self._waits(slot, cooldown) if cooldown is not None and slot else None

    def pool_is_tried(self) -> bool:
        """Whether the next machine is to prove the whole pool."""
        return self._due(CooldownKey.of_pool(self._pool.name)) is not None

    @property
    def any_due(self) -> bool:
        """Whether anything may have to be proved at all."""
        return bool(self._over)

    def is_tried(self, offer: Offer) -> bool:
        """Whether a machine of this offer would be one that is tried alone."""
        return bool(self._over) and any(self._due(key) is not None for key in scopes(self._pool.name, offer))

    def take(self, offer: Offer) -> Warn | None:
        """Count a machine of this offer as rented. A warning, and nothing is counted, while another proves its place.

        Call it in the order in which the machines are rented.
        """
        found = [
            (key, cooldown)
            for key in sorted(set(scopes(self._pool.name, offer)[:-1]))
            if self._over and (cooldown := self._due(key)) is not None
        ]
        for key, cooldown in found:
            if proof := self._proof_of(key, cooldown):
                return self._waits(proof, cooldown)
        self._chosen.append(offer)
        return None

    def least_failed(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """Where one machine has to prove a place or the pool: its offers that failed least, or longest ago."""
        if not self._over:
            return offers
        best: dict[str, tuple[int, float]] = {}
        proving: dict[str, list[CooldownKey]] = {}
        for offer in offers:
            keys = scopes(self._pool.name, offer)
            proving[offer.key] = [key for key in keys[1:] if self._due(key) is not None]
            for key in proving[offer.key]:
                best[key] = min(best.get(key, self._failures(offer)), self._failures(offer))
        return [o for o in offers if all(self._failures(o) == best[key] for key in proving[o.key])]

    def _failures(self, offer: Offer) -> tuple[int, float]:
        """A sort key: the offer's consecutive cooldowns, and when the last one ended."""
        cooldown = self._due(CooldownKey.of_offer(offer))
        return (cooldown.strikes, cooldown.until.timestamp()) if cooldown is not None else (0, 0.0)

    def _due(self, key: CooldownKey) -> Cooldown | None:
        """The expired cooldown after which one machine has to be READY before others are rented; None for none.

        A READY machine of another pool, which proves an offer as well, lifts its cooldown in the journal.
        """
        cooldown = self._over.get(key)
        if cooldown is None:
            return None
        of_key = [m for m in self._machines if key in scopes(m.pool, m.offer)]
        proved = any(m.ready_at is not None and m.ready_at >= cooldown.until for m in of_key)
        return None if proved else cooldown

    def _proof_of(self, key: CooldownKey, cooldown: Cooldown) -> str:
        """The machine or offer that proves this key already; "" when there is none."""
        there = [m for m in self._have if key in scopes(m.pool, m.offer)]
        about_to = (f"one machine of {o.key}" for o in self._chosen if key in scopes(self._pool.name, o))
        return self._proving_slot(cooldown, there) or next(about_to, "")

    def _proving_slot(self, cooldown: Cooldown, machines: Sequence[Machine]) -> str:
        """The slot of the machine that was rented after the cooldown and is not READY yet; "" when there is none."""
        since = (m.slot for m in machines if m.created_at >= cooldown.until and m.phase is not Phase.READY)
        return next(since, "")

    def _waits(self, what: str, cooldown: Cooldown) -> Warn:
        return Warn(
            self._pool.name,
            f"{what} is tried alone; the others follow once it is READY: {cooldown.reason}",
            WarningCode.TRIED_ALONE,
            f"`meshctl scale --pool {self._pool.name}` lifts this at once",
        )
