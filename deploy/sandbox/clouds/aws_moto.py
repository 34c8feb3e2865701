"""The part of the EC2 stand-in that uses moto.

moto answers most EC2 calls, but changes states at once and has no real addresses. Before each read, this module sets
state, reason, address and time of the instances from the ledger.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlencode

from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.moto_server.werkzeug_app import create_backend_app

from deploy.sandbox.clouds.gpu_names import nvidia_smi_name
from deploy.sandbox.clouds.ledger import End, Life, RentedMachine, shown_life
from meshd.contract.faults import FaultKind
from providers.aws.settings import DLAMI, DLAMI_ARM

_STATES = {
    Life.PENDING: ("pending", 0),
    Life.RUNNING: ("running", 16),
    Life.ENDING: ("shutting-down", 32),
    Life.ENDED: ("terminated", 48),
}
_REASONS = {
    End.ASKED: ("Client.UserInitiatedShutdown", "User initiated shutdown"),
    End.POWERED_OFF: ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown"),
    End.DIED: ("Server.InternalError", "Internal error on launch"),
    End.BOOT_FAILED: ("Server.InternalError", "Internal error on launch"),
    End.PREEMPTED: ("Server.SpotInstanceTermination", "Spot instance termination"),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes


#: Free accounts. Setting one up takes longer than most tests, so they are reused.
_IDLE_ACCOUNTS: list[str] = []
_NOBODY = "100000000000"
"""The account whose types and zones are used for all accounts."""
_COUNT = itertools.count(100_000_000_001)


#: moto's answers about types and public images, which are the same in all accounts and slow to compute.
_CATALOGUE: dict[tuple[str, tuple[tuple[str, str], ...]], Reply] = {}


@lru_cache
def _moto(service: str) -> Any:
    """Moto's application of one service. moto's own dispatcher searches its services for each request."""
    return create_backend_app(cast("Any", service))


@lru_cache
def _types(region: str) -> Mapping[str, Mapping[str, Any]]:
    """A region's types by name, which are the same in all accounts."""
    return {str(row["InstanceType"]): row for row in ec2_backends[_NOBODY][region].instance_types}


@lru_cache
def _zones(region: str) -> Mapping[str, list[str]]:
    """For each type of a region, the zones that have it, sorted."""
    found: dict[str, list[str]] = {}
    for row in ec2_backends[_NOBODY][region].describe_instance_type_offerings(location_type="availability-zone"):
        found.setdefault(str(row["InstanceType"]), []).append(str(row["Location"]))
    return {name: sorted(zones) for name, zones in found.items()}


class MotoEc2:
    """moto's EC2, in a separate account, so that several in one process do not share instances."""

    def __init__(self) -> None:
        self.account_id = _IDLE_ACCOUNTS.pop() if _IDLE_ACCOUNTS else str(next(_COUNT))

    def forward(self, environ: Mapping[str, Any], form: Mapping[str, str], service: str = "ec2") -> Reply:
        """Moto's answer to a request with `form` as its body."""
        body = urlencode(form).encode()
        inner: dict[str, Any] = {
            **environ,
            "HTTP_X_MOTO_ACCOUNT_ID": self.account_id,
            "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)),
        }
        seen: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[..., None]:
            seen.append((status, headers))
            return lambda _data: None

        chunks: Iterable[bytes] = _moto(service)(inner, start_response)
        body = b"".join(chunks)
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
        status, headers = seen[-1]
        return Reply(status, [h for h in headers if h[0].lower() != "content-length"], body)

    def catalogue(self, environ: Mapping[str, Any], form: Mapping[str, str], region: str) -> Reply:
        """Moto's answer to a query of types or images, cached."""
        question = (region, tuple(sorted(form.items())))
        if question not in _CATALOGUE:
            _CATALOGUE[question] = self.forward(environ, form)
        return _CATALOGUE[question]

    def ensure_images(self, region: str) -> None:
        """Register the images that the adapter uses by default."""
        backend = self._region(region)
        for index, (pattern, arch) in enumerate(((DLAMI, "x86_64"), (DLAMI_ARM, "arm64"))):
            image = Ami(
                backend,
                f"ami-0123456789abcdef{index}",
                name=pattern.replace("*", "20260101"),
                owner_id="898082745236",
                owner_alias="amazon",
                public=True,
                virtualization_type="hvm",
                architecture=arch,
                root_device_type="ebs",
                root_device_name="/dev/sda1",
            )
            backend.amis[image.id] = image

    def gpus(self, region: str, instance_type: str) -> tuple[int, str]:
        """A type's number of GPUs and their name in nvidia-smi; (0, "") for none or an unknown type."""
        row = self._type(region, instance_type)
        gpus = row.get("GpuInfo", {}).get("Gpus", []) if row else []
        if not gpus:
            return 0, ""
        memory_gib = round(gpus[0]["MemoryInfo"]["SizeInMiB"] / 1024)
        return int(gpus[0]["Count"]), nvidia_smi_name(str(gpus[0]["Name"]), memory_gib)

    def arch_of(self, region: str, instance_type: str) -> str:
        """A type's architecture."""
        row = self._type(region, instance_type) or {}
        return str((row.get("ProcessorInfo", {}).get("SupportedArchitectures") or ["x86_64"])[0])

    def knows_type(self, region: str, instance_type: str) -> bool:
        """Whether EC2 has such a type."""
        return self._type(region, instance_type) is not None

    def zones_of(self, region: str, instance_type: str) -> list[str]:
        """The zones that have a type, sorted."""
        return list(_zones(region).get(instance_type, ()))

    def _type(self, region: str, instance_type: str) -> Mapping[str, Any] | None:
        return _types(region).get(instance_type)

    def zone_of(self, region: str, instance_id: str) -> str:
        """The zone that moto chose for an instance."""
        return str(self._region(region).get_instance(instance_id).placement.zone)

    def show(self, machine: RentedMachine, content_faults: Collection[FaultKind]) -> None:
        """Set a machine in moto to the ledger's state, changed by content faults."""
        life = shown_life(machine, content_faults)
        instance = self._region(machine.region).get_instance(machine.id)
        name, code = ("quiescing", 96) if FaultKind.UNKNOWN_STATE in content_faults else _STATES[life]
        off = machine.powered_off and life in (Life.PENDING, Life.RUNNING)
        name, code = ("stopped", 80) if off else (name, code)
        instance._state.name, instance._state.code = name, code
        instance.launch_time = machine.created_at.replace(tzinfo=None)
        reason, words = ("", "")
        if off:
            reason, words = _REASONS[End.POWERED_OFF]
        if machine.life in (Life.ENDING, Life.ENDED):
            reason, words = _REASONS[machine.end or End.ASKED]
        instance.state_reason.code, instance.state_reason.message = reason, f"{reason}: {words}" if reason else ""
        instance._reason = words
        visible = life in (Life.RUNNING, Life.ENDING) and not off and not machine.faults.no_address
        for interface in instance.nics.values():
            interface.public_ip = machine.address if visible else None

    def close(self) -> None:
        """Delete the account's instances and release the account."""
        for backend in ec2_backends[self.account_id].values():
            backend.reservations.clear()
        _IDLE_ACCOUNTS.append(self.account_id)

    def _region(self, region: str) -> Any:
        return ec2_backends[self.account_id][region]
