"""What the cloud stand-ins ask of whatever runs their machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pod:
    """What a machine is that is an unprivileged container, not a virtual machine.

    Attributes:
        args: as the cloud's create call has them. Split like a shell's words, they follow the image's entrypoint; ""
            stands for the image's own command.
        env: environment of the container's first process.
        hostname: of the container, which cannot change it; "": the machine's name.
        cpus: CPUs that it may use at a time.
        memory_mib: memory that it may use.
        ports: TCP ports that reach it from outside, public to private; it is behind NAT.
        address_variable: name of the environment variable that tells its public address; "": none does.
        names: hosts that it can look up, each with its address; there is no name server.
        hard_nat: its NAT takes another port for each destination, so that no hole can be made in it (a fault).
        certificate: of a server that it trusts, in PEM; "": as its image.
    """

    args: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    hostname: str = ""
    cpus: float = 2.0
    memory_mib: int = 8192
    ports: Mapping[int, int] = field(default_factory=dict)
    address_variable: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    hard_nat: bool = False
    certificate: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Owned:
    """What a machine is that somebody owns: no cloud knows it, and it is on a network of its own behind NAT.

    Attributes:
        names: hosts that it can look up, each with its address; there is no name server.
        certificate: of a server that it trusts, in PEM; "": as its image.
        ports: TCP ports that its router lets in, public to private.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    certificate: str = field(default="", repr=False)
    ports: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """One machine to boot, as a cloud's create call describes it.

    Attributes:
        name: unique among the machines that run; [a-z0-9-], at most 63 characters.
        user_data: what the cloud passes to cloud-init, unchanged; "" for a pod, which has none.
        image: name of a prepared image, e.g. "trixie", "bookworm" or "trixie-pod".
        gpu_name: what nvidia-smi prints, e.g. "NVIDIA H100 80GB HBM3".
        clock_offset_s: seconds that the machine's wall clock is off (a fault; 0 in health).
        missing_gpus: how many of `gpus` do not show up inside (a fault; 0 in health).
        pod: makes it a container; None: a machine that boots systemd.
        owned: makes it somebody's own; None: a cloud's.
        keeps_disk: what it has written is there when it is off, so that an image can be made of it.
        names: of a cloud's machine that boots: hosts that it can look up besides, each with its address.
        certificate: of such a machine: of a server that it trusts, in PEM; "": as its image.
    """

    name: str
    user_data: str
    image: str = "trixie"
    gpus: int = 0
    gpu_name: str = "NVIDIA H100 80GB HBM3"
    clock_offset_s: int = 0
    missing_gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    pod: Pod | None = None
    owned: Owned | None = None
    keeps_disk: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    certificate: str = field(default="", repr=False)


class Hypervisor(Protocol):
    """Runs machines: for real (nspawn) or hollow (none at all, for tests of thousands)."""

    async def boot(self, spec: MachineSpec) -> str:
        """Start a machine and return its IPv4 address at once, while it still boots.

        Raises:
            RuntimeError: the machine could not be started; nothing of it is left.
        """
        ...

    async def destroy(self, name: str) -> None:
        """Pull the plug and remove every trace. Unknown names are ignored."""
        ...

    def alive(self, name: str) -> bool:
        """True while the machine runs; False once it has powered itself off or never was.

        A pod runs until it is destroyed: when its first process ends, its container is started again.
        """
        ...

    async def restart(self, name: str) -> None:
        """End a pod's container and start it again, with the same arguments and the same file system.

        Raises:
            KeyError: there is no such machine.
            ValueError: it is no pod.
        """
        ...

    async def snapshot(self, name: str, image: str) -> None:
        """Make an image with a new name of the disk of a machine that is off.

        Raises:
            RuntimeError: it runs, or keeps no disk.
        """
        ...

    def console(self, name: str) -> str:
        """What a machine wrote to its console so far, also of one that is gone; "" when it is not known."""
        ...


class HollowHypervisor:
    """Machines that are only book entries: instant, without processes."""

    def __init__(self) -> None:
        self._alive: dict[str, str] = {}
        self.restarts: list[str] = []
        """Names of the pods that were restarted, in order."""
        self.consoles: dict[str, str] = {}

    async def boot(self, spec: MachineSpec) -> str:
        """Record the machine and hand out an address of TEST-NET-2."""
        index = len(self._alive) + 1
        address = f"198.51.{100 + index // 250 % 100}.{index % 250 + 1}"
        self._alive[spec.name] = address
        return address

    async def destroy(self, name: str) -> None:
        """Forget the machine."""
        self._alive.pop(name, None)

    async def snapshot(self, name: str, image: str) -> None:
        """Do nothing: there are no disks."""

    def alive(self, name: str) -> bool:
        """Whether the machine is still recorded."""
        return name in self._alive

    def console(self, name: str) -> str:
        """What a test put there."""
        return self.consoles.get(name, "")

    async def restart(self, name: str) -> None:
        """Record the restart."""
        self._alive[name]
        self.restarts.append(name)
