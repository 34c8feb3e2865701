"""The tailnet paths of a machine, as its agent measured them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

NEAR_S = 0.010
"""A shorter round trip is one within a region."""


class PathKind(StrEnum):
    """How packets reach a peer."""

    DIRECT = "direct"
    """UDP from machine to machine."""
    PEER_RELAY = "peer-relay"
    """Another machine of the tailnet passes them on, by UDP."""
    DERP = "derp"
    """A relay of the control server passes them on, by TCP: slow."""


class ThroughputEstimate(StrEnum):
    """What a path may carry. An estimate from its kind and its round trip: nothing is transferred to find out."""

    HIGH = "high"
    """Direct, within a region: mostly above 1 Gbit/s; in user space less."""
    MEDIUM = "medium"
    """Direct and far, or through a peer relay: mostly 0.1 to 1 Gbit/s."""
    LOW = "low"
    """Over DERP: 1 to 50 Mbit/s."""


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """A path to one peer.

    Attributes:
        relay: the code of the DERP region, e.g. "fra"; "" for the other kinds.
        rtt_s: the shortest round trip that was measured.
        at: when it was measured.
    """

    kind: PathKind
    relay: str
    rtt_s: float
    at: datetime

    @property
    def direct(self) -> bool:
        """Whether no relay is in between."""
        return self.kind is PathKind.DIRECT

    @property
    def throughput_estimate(self) -> ThroughputEstimate:
        """See ThroughputEstimate."""
        if self.kind is PathKind.DERP:
            return ThroughputEstimate.LOW
        return ThroughputEstimate.HIGH if self.direct and self.rtt_s < NEAR_S else ThroughputEstimate.MEDIUM


@dataclass(frozen=True, slots=True)
class PeerPaths:
    """The paths to a sample of the other nodes of the pool.

    Attributes:
        direct, relayed, silent: how many paths are of that sort; a silent peer did not answer.
        rtt_s: the median round trip of those that answered; None when none did.
        not_direct: slots of some that are relayed or silent.
    """

    direct: int
    relayed: int
    silent: int
    rtt_s: float | None = None
    not_direct: tuple[str, ...] = ()
