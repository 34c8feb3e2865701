"""How much meshd may do by itself at a time, as the settings' table `guards` says. PURE."""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH_INTERVAL_MAX_S = 86_400.0
"""The longest time over which orders are counted."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The guards.

    Attributes:
        max_launches: machines that may be ordered within `launch_interval_s`; None: any number.
        max_leaving: nodes that may leave at once without a person's order; None: any number.
        confirm_usd_per_hour: people are asked before an order of theirs makes all machines cost more than this.
    """

    max_launches: int | None = None
    launch_interval_s: float = 600.0
    max_leaving: int | None = None
    confirm_usd_per_hour: float = 0.0
