"""Paperspace's machines, events, startup scripts and create request. PURE: no I/O, no clock.

Source: the API reference of api.paperspace.com/v1. Machines have no tags; meshd knows its machines by their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from meshd.provider_api import Instance, InstanceId, InstanceState, LaunchRequest
from providers._answers import utc_time
from providers.paperspace.errors import PAPERSPACE
from providers.paperspace.settings import PaperspaceSettings

NVLINK_TYPES = frozenset({"h100x8", "a100-80gx8"})

_STATES = {
    "provisioning": InstanceState.BOOTING,
    "starting": InstanceState.BOOTING,
    "restarting": InstanceState.BOOTING,
    "upgrading": InstanceState.BOOTING,
    "serviceready": InstanceState.RUNNING,  # the system is up; the vendor's desktop agent is not
    "ready": InstanceState.RUNNING,
    "stopping": InstanceState.STOPPING,
    "off": InstanceState.STOPPED,
}
_UNIQUE = "[a-kmnp-z2-9]{6}"  # no l, o, 0 and 1
_ENDED = (InstanceState.GONE, InstanceState.TERMINATING, InstanceState.FAILED)
_REGION_CODE = re.compile(r"([a-z]+[0-9]+)[^a-z0-9]*$")


def to_state(state: str) -> InstanceState:
    """The contract's state."""
    return _STATES.get(state, InstanceState.UNKNOWN)


def region_code(region: str) -> str:
    """The region's code in any spelling of the vendor: "ny2" for "NY2" and "East Coast (NY2)"."""
    lower = region.strip().lower()
    found = _REGION_CODE.search(lower)
    return found[1] if found else lower


def is_ours(name: str, cluster: str) -> bool:
    """Whether a name has the form of this cluster's machines: CLUSTER-POOL-NUMBER-xxxxxx.

    meshd may end such a machine, so the form is strict: it must not match names that people choose, e.g.
    "lab-ubuntu-22-04".
    """
    return re.fullmatch(rf"{re.escape(cluster)}-[a-z][a-z0-9-]*-[0-9]+-{_UNIQUE}", name) is not None


def to_instance(raw: Mapping[str, Any]) -> Instance:
    """The instance for a row of GET /machines."""
    state = str(raw.get("state") or "")
    rate = raw.get("usageRate")
    deleted = raw.get("dtDeleted") is not None
    return Instance(
        provider=PAPERSPACE,
        id=InstanceId(str(raw["id"])),
        token=str(raw.get("name") or ""),
        state=InstanceState.GONE if deleted else to_state(state),
        region=region_code(str(raw.get("region") or "")),
        instance_type=str(raw.get("machineType") or ""),
        public_ip=str(raw.get("publicIp") or ""),
        launched_at=utc_time(raw.get("dtCreated")),
        usd_per_hour=float(rate) if rate else None,
        reason="deleted" if deleted else "" if to_state(state) is not InstanceState.STOPPED else state,
        vendor_state=state,
    )


def launch_body(
    request: LaunchRequest, settings: PaperspaceSettings, template: Mapping[str, Any], script_id: str
) -> dict[str, Any]:
    """The body of POST /machines.

    Args:
        request: the launch request.
        settings: disk and network.
        template: an OS template: `id`, and `defaultSizeGb`, the smallest possible disk.
        script_id: the startup script with the user data.
    """
    offer = request.offer
    body: dict[str, Any] = {
        "name": request.token,
        "machineType": offer.instance_type,
        "templateId": str(template["id"]),
        "diskSize": max(settings.disk_gb, int(template.get("defaultSizeGb") or 0)),
        "region": offer.region,
        "publicIpType": "dynamic",  # a static address would still cost money after the machine has ended
        "startupScriptId": script_id,
        "startOnCreate": True,
        "emailPassword": False,
        "takeInitialSnapshot": False,
        "autoSnapshotEnabled": False,
        "autoShutdownEnabled": False,
    }
    if offer.instance_type.lower() in NVLINK_TYPES:
        body["enableNvlink"] = True
    if offer.region in settings.network_ids:
        body["networkId"] = settings.network_ids[offer.region]
    return body


def failed_create(events: Sequence[Mapping[str, Any]]) -> str:
    """Why the machine could not be made, in the vendor's words; "" when no event says so."""
    for event in events:
        if event.get("name") == "create" and event.get("state") in ("error", "cancelled"):
            return f"create: {event.get('error') or event.get('state')}"
    return ""


def deletion(events: Sequence[Mapping[str, Any]]) -> str:
    """The state of the newest deletion: new, in progress, done, error or cancelled; "" when there was none."""
    found = [event for event in events if event.get("name") == "deactivate"]
    newest = max(found, key=lambda event: str(event.get("dtCreated") or ""), default=None)
    return "" if newest is None else str(newest.get("state") or "")


def why_gone(events: Sequence[Mapping[str, Any]]) -> str:
    """What ended a machine that is not found; "" when its events do not say."""
    state = deletion(events)
    return failed_create(events) or (f"deactivate: {state}" if state in ("new", "in progress", "done") else "")


def stale_scripts(
    scripts: Sequence[Mapping[str, Any]],
    machines: Sequence[Instance],
    *,
    cluster: str,
    up_since: Mapping[InstanceId, datetime],
    first_seen: Mapping[str, datetime],
    now: datetime,
    settings: PaperspaceSettings,
) -> list[str]:
    """The ids of this cluster's startup scripts that no machine needs any more.

    Args:
        scripts: rows of GET /startup-scripts.
        machines: all machines of this cluster, listed before the scripts.
        cluster: only scripts named like this cluster's machines count.
        up_since: when each machine was first seen running.
        first_seen: when each script was first seen, for scripts without a date.
        now: the current time.
        settings: how long to keep scripts.
    """
    ready = timedelta(seconds=settings.script_ready_s)

    def has_run(machine: Instance) -> bool:
        since = up_since.get(machine.id)
        return machine.state in _ENDED or (since is not None and now - since >= ready)

    stale: list[str] = []
    for script in scripts:
        script_id, name = str(script["id"]), str(script.get("name") or "")
        if not is_ours(name, cluster) or script.get("dtDeleted") is not None:
            continue
        assigned = script.get("assignedMachineIds") or ()
        theirs = [machine for machine in machines if machine.token == name or machine.id in assigned]
        age = now - (utc_time(script.get("dtCreated")) or first_seen.get(script_id, now))
        longest_s = settings.script_max_age_s if theirs else settings.script_grace_s
        if (theirs and all(has_run(machine) for machine in theirs)) or age >= timedelta(seconds=longest_s):
            stale.append(script_id)
    return stale
