"""A machine's hardware, as `slurmd -C` and nvidia-smi show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The part of a NodeName line that describes hardware.

    Attributes:
        memory_mib: RealMemory as slurmd reports it, before the safety margin.
    """

    cpus: int
    boards: int
    sockets_per_board: int
    cores_per_socket: int
    threads_per_core: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class GpuFact:
    """One GPU as the machine shows it; `device` is its file, e.g. /dev/nvidia0."""

    index: int
    name: str
    uuid: str
    memory_mib: int
    device: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts that a node agent reports when it asks to join.

    Attributes:
        gpus: those that work.
        slurmd_version: e.g. "24.11.5".
        clock_skew_s: the machine's clock minus the head's.
        machine_id: a digest of /etc/machine-id where systemd runs; "" elsewhere, and from an older agent.
        gpu_fault: what nvidia-smi says of GPUs that do not work, or why it fails; "" when there is no fault.
        systemd: systemd runs on it; a machine without is a pod. None when not known, as from an older agent.
        tun: it has a TUN device that its agent may use. None when not known.
        instance_id: what its cloud's metadata service says that it is; "" for a machine that no gang has.
        firewall: its agent may make firewall rules: CAP_NET_ADMIN is effective. None when not known.
    """

    shape: NodeShape
    gpus: tuple[GpuFact, ...]
    slurmd_version: str
    tailscale_version: str
    agent_version: str
    os: str
    arch: str
    clock_skew_s: float
    ssh_host_key: str = ""
    machine_id: str = ""
    gpu_fault: str = ""
    systemd: bool | None = None
    tun: bool | None = None
    firewall: bool | None = None
    instance_id: str = ""
