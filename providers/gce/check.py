"""A check of the credentials' permissions, by reads and by projects.testIamPermissions.

Source of the permissions: "IAM Permissions" of each method in the Compute API's reference. docs/providers.md has them
as a role.
"""

from __future__ import annotations

import re

from meshd.errors import AuthFailed
from providers._permissions import Probe, missing_permissions, require_none_missing
from providers.gce.client import Gce
from providers.gce.errors import GCE
from providers.gce.mapping import cluster_filter
from providers.gce.offers import name_filter
from providers.gce.settings import GceSettings

ALWAYS = (
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.machineTypes.list",
    "compute.zoneOperations.get",
)
LIST_OPERATIONS = "compute.zoneOperations.list"
SERIAL_PORT = "compute.instances.getSerialPortOutput"
IMAGES = (
    "compute.disks.useReadOnly",
    "compute.images.create",
    "compute.images.delete",
    "compute.images.get",
    "compute.images.list",
    "compute.images.setLabels",
    "compute.images.useReadOnly",
)
OPTIONAL = {
    LIST_OPERATIONS: "without it meshd cannot say what ended a machine",
    SERIAL_PORT: "without it `meshctl logs NODE` shows no console",
    "compute.addresses.list": "without it `meshctl audit` lists no addresses",
    "compute.disks.list": "without it `meshctl audit` lists no disks",
    "compute.snapshots.list": "without it `meshctl audit` lists no snapshots",
    **dict.fromkeys(IMAGES, "without all of these no image can be baked"),
}
"""Without these permissions everything else works."""
ACCELERATORS = "compute.acceleratorTypes.list"
_REQUIRED = re.compile(r"Required '(compute\.[A-Za-z.]+)' permission")
_PROJECT = re.compile(r"projects/([^/]+)/")


class PermissionCheck:
    """Checks the permissions in the project."""

    def __init__(self, cluster: str, settings: GceSettings, gce: Gce) -> None:
        self._cluster = cluster
        self._settings = settings
        self._gce = gce

    async def __call__(self) -> str:
        """Whose the credentials are, and what could not be checked.

        Raises:
            AuthFailed: they are invalid, or permissions are missing; the text has the permissions' names.
        """
        settings, gce = self._settings, self._gce
        reads = [
            Probe("compute.instances.list", lambda: gce.instances(cluster_filter(self._cluster), "check")),
            Probe("compute.machineTypes.list", lambda: gce.machine_types(name_filter(settings), "check")),
        ]
        if settings.attached_gpus:
            reads.append(Probe(ACCELERATORS, lambda: gce.accelerator_types("check")))
        missing = await missing_permissions(reads, _named)
        wanted = needed(settings, gce.project)
        granted = await gce.granted((*wanted, *OPTIONAL))
        if granted is not None:
            missing += set(wanted) - granted
        require_none_missing(GCE, missing, gce.who)
        return f"{gce.who}; {_note(granted)}"


def _named(error: AuthFailed, _asked: str) -> str:
    return missing_in(error.text)


def _note(granted: frozenset[str] | None) -> str:
    if granted is None:
        return (
            "reads are allowed; to check whether machines may be made, enable the Cloud Resource Manager API in the "
            "project"
        )
    lacking: dict[str, list[str]] = {}
    for name, why in OPTIONAL.items():
        if name not in granted:
            lacking.setdefault(why, []).append(name)
    words = "; ".join(f"{', '.join(names)}: {why}" for why, names in lacking.items())
    return f"no permission is missing except {words}" if words else "no permission is missing"


def needed(settings: GceSettings, project: str) -> tuple[str, ...]:
    """The permissions needed in the project with these settings, without those in a shared network's own project."""
    found = list(ALWAYS)
    networks = (settings.network, *settings.subnetworks.values())
    elsewhere = any(match[1] != project for path in networks if (match := _PROJECT.search(path)))
    if not elsewhere:
        found += ["compute.subnetworks.use"] + ["compute.subnetworks.useExternalIp"] * settings.public_ip
    if settings.attached_gpus:
        found.append(ACCELERATORS)
    if settings.network_tags:
        found.append("compute.instances.setTags")
    if settings.machine_service_account:
        found.append("compute.instances.setServiceAccount")
    return tuple(sorted(found))


def missing_in(text: str) -> str:
    """The permission that a refusal names; "" when it names none, e.g. because an API is disabled."""
    found = _REQUIRED.search(text)
    return found[1] if found else ""
