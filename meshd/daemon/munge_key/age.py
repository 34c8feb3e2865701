"""When the munge key was made, read once a day and after a rotation: for the metrics, and to tell that it is old."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar

from meshd.api.schema import ProblemView
from meshd.daemon.controller import Controller
from meshd.daemon.munge_key import checks
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
        keys.on_end(self.wake)

    def problems(self) -> Iterable[ProblemView]:
        """A rotation is due. See Controller."""
        if self.made_at is not None and not self._keys.active:
            yield from checks.key_age(self.made_at, self._clock.now())

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
