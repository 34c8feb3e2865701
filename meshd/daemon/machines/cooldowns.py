"""Writes cooldowns: after a cloud said no, or after its machine failed. The rules are in plan/failure_rules."""

from __future__ import annotations

from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.machines.boot_images import NO_IMAGES, BootImages
from meshd.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)
from meshd.model.cooldown import Cooldown, CooldownCause, CooldownKey
from meshd.model.machine import FailureCause, Machine
from meshd.plan.failure_rules import QUOTA_S, Scope, Wait, rule_of

RETRY_TRANSIENT_S = 10.0
OTHER_IMAGE_S = 1.0
"""Until a call that was refused because of its image, or may have been, goes out again with another one."""
BLOCK_AUTH_S = 120.0
PARTS_AFTER_S = 30.0
"""Until then other offers are asked for the whole gang of a target. Afterwards this one is asked for its machines one
by one (meshd/plan/gang_orders.py)."""


class Cooldowns:
    """Writes cooldowns into the journal. Every method raises StoreError when it cannot be written."""

    def __init__(self, machine_store: MachineStore, live: LiveSettings, images: BootImages = NO_IMAGES) -> None:
        self._machine_store = machine_store
        self._live = live
        self._images = images

    def refused(self, machine: Machine, error: ProviderError, *, parts: bool = False) -> Cooldown:
        """After a create call that was refused: what is not asked again for a while.

        Args:
            machine: the machine, or one of the gang.
            error: the refusal.
            parts: it was refused for several machines, and a part of them would do.
        """
        machine_store, timing, words = self._machine_store, self._live.settings.timing, error.vendor_text
        offer, provider = CooldownKey.of_offer(machine.offer), CooldownKey.of_provider(machine.provider)
        most_s = timing.no_capacity_cooldown_max_s
        match error:
            case RateLimited() | Transient():
                wait_s = error.retry_after_s or RETRY_TRANSIENT_S
                return machine_store.paused(provider, wait_s, words, fault=isinstance(error, Transient))
            case NoCapacity() | NotFound() | QuotaExceeded() if parts:
                wait_s = min(PARTS_AFTER_S, timing.no_capacity_cooldown_s)
                return machine_store.refused(offer, wait_s, most_s, words)
            case NoCapacity() | NotFound():
                return machine_store.refused(offer, timing.no_capacity_cooldown_s, most_s, words)
            case QuotaExceeded():
                return machine_store.refused(offer, QUOTA_S, most_s, words)
            case InvalidRequest() if machine.image:
                self._images.refused(machine.provider, machine.image, words)
                return machine_store.paused(provider, OTHER_IMAGE_S, words, fault=False)
            case AuthFailed():
                return machine_store.refused(provider, BLOCK_AUTH_S, BLOCK_AUTH_S, words)
        return machine_store.refused(offer, timing.breaker_cooldown_s, most_s, words)

    def unsendable(self, machine: Machine, why: str) -> Cooldown:
        """After an order that no offer of its provider takes: the whole provider."""
        wait_s = self._live.settings.timing.breaker_cooldown_s
        return self._machine_store.refused(CooldownKey.of_provider(machine.provider), wait_s, wait_s, why)

    def failed(self, machine: Machine, cause: FailureCause, words: str) -> None:
        """After a machine that was rented failed for a cause that is clear at once; all other causes are counted.

        Args:
            machine: as it was before it is given up.
            cause: why.
            words: the cloud's own.
        """
        rule = rule_of(cause)
        if cause is FailureCause.IMAGE and machine.image:
            self._images.refused(machine.provider, machine.image, words)
            return
        if not rule.at_once or rule.scope is Scope.NOTHING:
            return
        timing = self._live.settings.timing
        waits_s = {
            Wait.NO_CAPACITY: timing.no_capacity_cooldown_s,
            Wait.QUOTA: QUOTA_S,
            Wait.BREAKER: timing.breaker_cooldown_s,
        }
        whole_region = rule.scope is Scope.REGION
        key = (
            CooldownKey.of_place(machine.pool, machine.provider, machine.offer.region)
            if whole_region
            else CooldownKey.of_offer(machine.offer)
        )
        most_s = timing.no_capacity_cooldown_max_s
        self._machine_store.refused(key, waits_s[rule.wait], most_s, words, cause=CooldownCause.ENDED)
