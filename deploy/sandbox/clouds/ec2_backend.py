"""What the EC2 stand-in takes from moto: requests answered, instances altered, images and types known.

moto answers most of EC2's calls well, but changes states at once and knows nothing of real addresses. So before each
look at instances their state, reason, address and time are set to what the ledger says.
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
from deploy.sandbox.clouds.ledger import End, Life, Machine, shown_life
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


#: Accounts that nobody uses now. To set one up takes longer than most tests, so they are used again.
_IDLE_ACCOUNTS: list[str] = []
_NOBODY = "100000000000"
"""The account whose view of types and zones stands for all."""
_COUNT = itertools.count(100_000_000_001)


#: What moto said of types and public images, the same in all accounts. To say it takes longer than most tests.
_CATALOGUE: dict[tuple[str, tuple[tuple[str, str], ...]], Reply] = {}


@lru_cache
def _moto(service: str) -> Any:
    """The application of one service. moto's dispatcher would search its folder of services for each request."""
    return create_backend_app(cast("Any", service))


@lru_cache
def _types(region: str) -> Mapping[str, Mapping[str, Any]]:
    """A region's types by name, the same in all accounts; of thousands, most calls ask for one."""
    return {str(row["InstanceType"]): row for row in ec2_backends[_NOBODY][region].instance_types}


@lru_cache
def _zones(region: str) -> Mapping[str, list[str]]:
    """The zones that have a type, in order, for each type of a region."""
    found: dict[str, list[str]] = {}
    for row in ec2_backends[_NOBODY][region].describe_instance_type_offerings(location_type="availability-zone"):
        found.setdefault(str(row["InstanceType"]), []).append(str(row["Location"]))
    return {name: sorted(zones) for name, zones in found.items()}


class Backend:
    """EC2 as moto has it, in an account of its own: several in one process do not see each other's instances."""

    def __init__(self) -> None:
        self.account_id = _IDLE_ACCOUNTS.pop() if _IDLE_ACCOUNTS else str(next(_COUNT))

    def forward(self, environ: Mapping[str, Any], form: Mapping[str, str], service: str = "ec2") -> Reply:
        """Let moto answer, with `form` in place of the request's own body."""
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
        """Let moto answer a question about types or images; the same question has the same answer."""
        question = (region, tuple(sorted(form.items())))
        if question not in _CATALOGUE:
            _CATALOGUE[question] = self.forward(environ, form)
        return _CATALOGUE[question]

    def ensure_images(self, region: str) -> None:
        """Publish the images that the adapter looks for by default."""
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
        """How many GPUs a type has and what nvidia-smi calls them; (0, "") for none or an unknown type."""
        row = self._type(region, instance_type)
        gpus = row.get("GpuInfo", {}).get("Gpus", []) if row else []
        if not gpus:
            return 0, ""
        memory_gib = round(gpus[0]["MemoryInfo"]["SizeInMiB"] / 1024)
        return int(gpus[0]["Count"]), nvidia_smi_name(str(gpus[0]["Name"]), memory_gib)

    def knows_type(self, region: str, instance_type: str) -> bool:
        """Whether EC2 has such a type."""
        return self._type(region, instance_type) is not None

    def zones_of(self, region: str, instance_type: str) -> list[str]:
        """The zones that have a type, in order."""
        return list(_zones(region).get(instance_type, ()))

    def _type(self, region: str, instance_type: str) -> Mapping[str, Any] | None:
        return _types(region).get(instance_type)

    def zone_of(self, region: str, instance_id: str) -> str:
        """The zone that moto put an instance in."""
        return str(self._region(region).get_instance(instance_id).placement.zone)

    def show(self, machine: Machine, content_faults: Collection[FaultKind]) -> None:
        """Make moto tell what the ledger says of a machine, spoiled by the faults of an answer's form."""
        life = shown_life(machine, content_faults)
        instance = self._region(machine.region).get_instance(machine.id)
        name, code = ("quiescing", 96) if FaultKind.UNKNOWN_STATE in content_faults else _STATES[life]
        instance._state.name, instance._state.code = name, code
        instance.launch_time = machine.created_at.replace(tzinfo=None)
        reason, words = ("", "")
        if machine.life in (Life.ENDING, Life.ENDED):
            reason, words = _REASONS[machine.end or End.ASKED]
        instance.state_reason.code, instance.state_reason.message = reason, f"{reason}: {words}" if reason else ""
        instance._reason = words
        visible = life in (Life.RUNNING, Life.ENDING) and not machine.faults.no_address
        for interface in instance.nics.values():
            interface.public_ip = machine.address if visible else None

    def close(self) -> None:
        """Forget the account's instances, and let others use it."""
        for backend in ec2_backends[self.account_id].values():
            backend.reservations.clear()
        _IDLE_ACCOUNTS.append(self.account_id)

    def _region(self, region: str) -> Any:
        return ec2_backends[self.account_id][region]
