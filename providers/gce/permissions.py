"""The permissions that the adapter's calls need, and what Google tells of missing ones. PURE: no I/O, no clock.

Source: the Compute API's reference, "IAM Permissions" of each method. docs/providers.md has the same as a role.
"""

from __future__ import annotations

import re

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
STORIES = "compute.zoneOperations.list"
"""Without it everything works, but nobody learns what ended a machine."""
ACCELERATORS = "compute.acceleratorTypes.list"
_REQUIRED = re.compile(r"Required '(compute\.[A-Za-z.]+)' permission")
_PROJECT = re.compile(r"projects/([^/]+)/")


def needed(settings: GceSettings, project: str) -> tuple[str, ...]:
    """What is needed in the project with these settings; what a shared network's own project grants is not in it."""
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
    """The permission that a refusal names; "" when it is about something else, such as an API that is switched off."""
    found = _REQUIRED.search(text)
    return found[1] if found else ""
