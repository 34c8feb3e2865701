"""What the live view knows: the newest answers of the daemon. PURE."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from meshd.api.schema import CostView, JobsView, NodeRow, NodesView, StatusView


@dataclass(frozen=True, slots=True)
class Board:
    """The newest answers of the daemon.

    Attributes:
        cost: of today, in UTC.
        may_write: whether the user may drain nodes; None: that is not known yet.
        error: why there is no newer answer; "" while the daemon answers.
        error_since: since when, by this host's clock.
    """

    status: StatusView | None = None
    nodes: NodesView | None = None
    jobs: JobsView | None = None
    cost: CostView | None = None
    may_write: bool | None = None
    error: str = ""
    error_since: datetime | None = None

    @property
    def machines(self) -> list[NodeRow]:
        """All machines."""
        return self.nodes.nodes if self.nodes else []
