"""When the munge key was made, read once a day, for the metrics."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from meshd.daemon.controller import Controller
from meshd.daemon.munge_key.controller import MungeKeyController
from meshd.errors import MungeError
from meshd.runtime.clock import Clock

AGAIN_S = 86400.0
SOON_S = 600.0
"""After a look that failed, or while the key is being rotated."""


class MungeKeyAge(Controller):
    """Looks at the key that is in place.

    Args:
        keys: the controller whose head has the key.
        clock: time.

    Attributes:
        made_at: when it was made; None when that is not known.
    """

    name: ClassVar[str] = "munge_key_age"

    def __init__(self, keys: MungeKeyController, clock: Clock) -> None:
        super().__init__(clock)
        self._keys = keys
        self.made_at: datetime | None = None

    async def reconcile(self) -> float | None:
        """Look. See Controller."""
        if self._keys.active:
            self.made_at = None
            return SOON_S
        try:
            self.made_at = await self._keys.head.made_at()
        except MungeError:
            self.made_at = None
            return SOON_S
        return AGAIN_S
