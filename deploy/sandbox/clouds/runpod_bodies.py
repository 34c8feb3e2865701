"""Bodies of RunPod's API: checks of a create call, and pods."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from deploy.sandbox.clouds.ledger import Life, RentedMachine, shown_life
from deploy.sandbox.clouds.runpod_pods import public_port
from meshd.contract.faults import FaultKind

TAG_PREFIX = "MESHD_TAG_"
_KEYS = {
    "args", "cloud", "cpu", "dataCenterIds", "disk", "env", "globalNetworking", "gpu", "image", "mounts", "name",
    "ports", "registry", "startJupyter", "startSsh", "templateId",
}  # fmt: skip
_GPU_KEYS = {"id", "count", "allowedCudaVersions", "minCudaVersion"}
_CPU_KEYS = {"id", "vcpuCount"}
_TYPES: dict[str, type] = {
    "args": str, "cloud": str, "cpu": dict, "dataCenterIds": list, "disk": int, "env": dict, "globalNetworking": bool,
    "gpu": dict, "image": str, "mounts": dict, "name": str, "ports": list, "startSsh": bool,
}  # fmt: skip
ACTIONS = {
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["start", "terminate"],
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
}


def type_name(kind_id: str, count: int, *, cpu: bool = False, community: bool = False) -> str:
    """The ledger's name of a kind of pod. The adapter's offers have the same, so that tests can limit capacity."""
    return f"{count}{'vcpu' if cpu else 'x'}_{kind_id.replace(' ', '_')}{'@community' if community else ''}"


def problems_of(body: Mapping[str, Any]) -> list[str]:
    """The problems in a create call's body, as in `errors` of a 422."""
    found = [f"$: additional properties '{key}' not allowed" for key in sorted(body.keys() - _KEYS)]
    found += [f"$.{k}: expected {t.__name__}" for k, t in _TYPES.items() if k in body and not isinstance(body[k], t)]
    found += [f"$: missing required property '{key}'" for key in ("name", "image") if not body.get(key)]
    if found:
        return found
    for name, keys in (("gpu", _GPU_KEYS), ("cpu", _CPU_KEYS)):
        part = body.get(name, {"id": ""})
        found += [f"$.{name}: additional properties '{key}' not allowed" for key in sorted(part.keys() - keys)]
        found += [f"$.{name}: missing required property 'id'"] if "id" not in part else []
    if body.get("cloud", "SECURE") not in ("SECURE", "COMMUNITY"):
        found.append("$.cloud: value must be one of 'SECURE', 'COMMUNITY'")
    if any(not isinstance(value, str) for value in body.get("env", {}).values()):
        found.append("$.env: expected string")
    return found


def tags_of(env: Mapping[str, str]) -> dict[str, str]:
    """The adapter's tags in a container's environment."""
    marks = {key: value for key, value in env.items() if key.startswith(TAG_PREFIX)}
    return {f"meshd-{key.removeprefix(TAG_PREFIX).lower().replace('_', '-')}": value for key, value in marks.items()}


def status_of(machine: RentedMachine, content_faults: frozenset[FaultKind]) -> str:
    """The vendor's status. A pod is RUNNING as soon as it has a host, long before its container runs."""
    if FaultKind.UNKNOWN_STATE in content_faults:
        return "MIGRATING"
    if machine.life is Life.ENDED:
        return "TERMINATED"
    if machine.powered_off:
        return "EXITED"
    return "RUNNING" if machine.address or machine.faults.never_boots else "PROVISIONING"


def pod_body(
    machine: RentedMachine, asked: Mapping[str, Any], content_faults: frozenset[FaultKind], now: datetime
) -> dict[str, Any]:
    """The vendor's Pod.

    Args:
        machine: the machine.
        asked: the body of the create call.
        content_faults: the faults of the answer's content.
        now: the current time.
    """
    status = status_of(machine, content_faults)
    up = shown_life(machine, content_faults) in (Life.RUNNING, Life.ENDING) and not machine.powered_off
    ports = [_port(port, machine) for port in asked.get("ports", [])] if up else []
    direct = next((port for port in ports if port["private"] == 22 and port["public"]), None)
    proxy = _ssh(host="ssh.runpod.io", port=22, username=machine.id)
    body: dict[str, Any] = {
        "id": machine.id,
        "name": machine.token,
        "status": status,
        "actions": ACTIONS.get(status, []),
        "image": asked["image"],
        "args": asked.get("args", ""),
        "disk": asked.get("disk", 20),
        "mounts": asked.get("mounts", {}),
        "ports": asked.get("ports", []),
        "env": asked.get("env", {}),
        "registry": asked.get("registry"),
        "cloud": asked.get("cloud", "SECURE"),
        "dataCenterId": machine.region or None,
        "cudaVersion": "12.8" if machine.gpus else None,
        "ssh": {"proxy": proxy, "direct": None},
        "template": None,
        "cost": machine.usd_per_hour,
        "locked": False,
        "globalNetworking": {"enabled": False},
        "runtime": {"uptime": int((now - machine.created_at).total_seconds()), "ports": ports} if up else None,
        "createdAt": _time(machine.created_at),
        "startedAt": _time(machine.created_at) if up else None,
    }
    if direct is not None:
        body["ssh"]["direct"] = _ssh(host=machine.address, port=direct["public"], username="root")
    if asked.get("globalNetworking") and up:
        body["globalNetworking"] = {"enabled": True, "ip": "10.65.1.42", "internalDns": f"{machine.id}.runpod.internal"}
    if "gpu" in asked:
        body["gpu"] = {"id": asked["gpu"]["id"], "count": machine.gpus}
    else:
        body["cpu"] = {**asked["cpu"], "memory": asked["cpu"]["vcpuCount"] * 2}
    if FaultKind.UNKNOWN_FIELDS in content_faults:
        body |= {"novelty": {"depth": 1}, "zz_list": [1, 2]}
    return body


def _port(port: str, machine: RentedMachine) -> dict[str, Any]:
    number, _, kind = port.partition("/")
    if kind == "http":
        return {"private": int(number), "public": 60000 + int(number) % 1000, "type": "http", "ip": "100.65.0.9"}
    hidden = machine.faults.no_address
    public, ip = (None, None) if hidden else (public_port(int(number)), machine.address)
    return {"private": int(number), "public": public, "type": "tcp", "ip": ip}


def _ssh(host: str, port: int, username: str) -> dict[str, Any]:
    extra = "" if port == 22 else f" -p {port}"
    return {"host": host, "port": port, "username": username, "command": f"ssh {username}@{host}{extra}"}


def _time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
