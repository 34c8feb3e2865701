"""Makes others wait while head and nodes switch to another munge key: a few seconds, and HOLD_MAX_S at most."""

from __future__ import annotations

import structlog

from meshd.munge.rotation import unsettles_slurm
from meshd.runtime.clock import Clock
from meshd.store.munge_rotations import MungeRotations

LOOK_S = 0.1
HOLD_MAX_S = 60.0
"""Also when the clock was set back."""

log = structlog.get_logger(__name__)


class Quiesce:
    """See the module.

    Args:
        rotations: of the munge key.
        clock: time.
    """

    def __init__(self, rotations: MungeRotations, clock: Clock) -> None:
        self._rotations = rotations
        self._clock = clock

    @property
    def on(self) -> bool:
        """Slurm's daemons may refuse each other now, so work that can wait should wait."""
        rotation = self._rotations.last()
        return rotation is not None and unsettles_slurm(rotation, self._clock.now())

    async def wait_until_quiet(self) -> None:
        """Return when Slurm's daemons accept each other's credentials: at once, except during a switch of the key."""
        if not self.on:
            return
        began_s = self._clock.monotonic_s()
        waited_s = 0.0
        while self.on and waited_s < HOLD_MAX_S:
            await self._clock.sleep(LOOK_S)
            waited_s = self._clock.monotonic_s() - began_s
        log.info("waited_for_munge_key", waited_s=round(waited_s, 1))
