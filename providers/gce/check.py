"""Whether the credentials may do everything that meshd needs: by reads, and by asking Google what they may."""

from __future__ import annotations

from meshd.errors import AuthFailed
from providers._permissions import Probe, lacking, must_lack_nothing
from providers.gce.client import Gce
from providers.gce.errors import GCE
from providers.gce.mapping import cluster_filter
from providers.gce.permissions import ACCELERATORS, STORIES, missing_in, needed
from providers.gce.settings import GceSettings
from providers.gce.shapes import name_filter


class Check:
    """Looks through the project."""

    def __init__(self, cluster: str, settings: GceSettings, gce: Gce) -> None:
        self._cluster = cluster
        self._settings = settings
        self._gce = gce

    async def __call__(self) -> str:
        """Whose the credentials are, and what could not be told.

        Raises:
            AuthFailed: they are no good, or permissions are missing: the text names each, as IAM does.
        """
        settings, gce = self._settings, self._gce
        reads = [
            Probe("compute.instances.list", lambda: gce.instances(cluster_filter(self._cluster), "check")),
            Probe("compute.machineTypes.list", lambda: gce.machine_types(name_filter(settings), "check")),
        ]
        if settings.attached_gpus:
            reads.append(Probe(ACCELERATORS, lambda: gce.accelerator_types("check")))
        missing = await lacking(reads, _named)
        wanted = needed(settings, gce.project)
        granted = await gce.granted((*wanted, STORIES))
        if granted is not None:
            missing += set(wanted) - granted
        must_lack_nothing(GCE, missing, gce.who)
        return f"{gce.who}; {_note(granted)}"


def _named(error: AuthFailed, _asked: str) -> str:
    return missing_in(error.text)


def _note(granted: frozenset[str] | None) -> str:
    if granted is None:
        return (
            "reads are allowed; whether machines may be made can be told once the Cloud Resource Manager API is "
            "switched on in the project"
        )
    if STORIES not in granted:
        return f"no permission is missing but {STORIES}, without which it cannot be told what ended a machine"
    return "no permission is missing"
