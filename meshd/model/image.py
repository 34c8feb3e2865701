"""A baked image that is being made, as the journal keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

PARTS_TAG = "meshd-parts"
"""The tag with the digest of what meshd installs."""
SLURM_TAG = "meshd-slurm"
"""The tag with the version of slurmd in the image."""
TAILSCALE_TAG = "meshd-tailscale"
"""The tag with the version of tailscale in the image."""


class BakePhase(StrEnum):
    """How far it is."""

    INSTALLING = "installing"
    """Its machine is ordered, or installs."""
    COPYING = "copying"
    """Its machine is off and complete. The cloud was, or may have been, asked to copy its disk."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Bake:
    """One image to make. Its name is that of its machine, which is used once.

    Attributes:
        script: the user data of its machine, the same however often it is ordered.
        parts: digest of what is installed.
        slurm, tailscale: versions, as the machine wrote them to its console; "" until then.
        image_id: "" until the cloud has told it.
        reason: why it is in this phase, for people.
        by: who asked for it.
    """

    name: str
    provider: str
    region: str
    arch: str
    phase: BakePhase
    begun_at: datetime
    phase_since: datetime
    script: str
    parts: str
    slurm: str = ""
    tailscale: str = ""
    image_id: str = ""
    reason: str = ""
    by: str = ""

    @property
    def active(self) -> bool:
        """Whether something is to be done for it."""
        return self.phase in {BakePhase.INSTALLING, BakePhase.COPYING}
