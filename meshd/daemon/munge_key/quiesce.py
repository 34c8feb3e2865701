"""Holds back what asks much of Slurm while head and nodes change the munge key: some seconds, and never for long."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from meshd.munge.rotation import Rotation, unsettles_slurm
from meshd.runtime.clock import Clock

LOOK_S = 0.1
HOLD_MAX_S = 60.0
"""Nobody waits for longer, also when the clock was set back."""

log = structlog.get_logger(__name__)


class Quiesce:
    """See the module.

    Args:
        rotation: the newest rotation of the munge key.
        clock: time.
    """

    def __init__(self, rotation: Callable[[], Rotation | None], clock: Clock) -> None:
        self._rotation = rotation
        self._clock = clock

    @property
    def on(self) -> bool:
        """What need not happen now had better wait."""
        rotation = self._rotation()
        return rotation is not None and unsettles_slurm(rotation, self._clock.now())

    async def wait_until_quiet(self) -> None:
        """Return when Slurm's daemons understand each other: at once, but in the middle of a change of the key."""
        if not self.on:
            return
        began_s = self._clock.monotonic_s()
        waited_s = 0.0
        while self.on and waited_s < HOLD_MAX_S:
            await self._clock.sleep(LOOK_S)
            waited_s = self._clock.monotonic_s() - began_s
        log.info("waited_for_munge_key", waited_s=round(waited_s, 1))
