"""What a machine is made of: the files that are laid over its image before it starts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from deploy.sandbox.hypervisor import MachineSpec, Owned
from deploy.sandbox.network import METADATA

_MEMORY_MIB = {
    "H100 80GB": 81559,
    "H100 PCIe": 81559,
    "H200": 143771,
    "B200": 183359,
    "GH200": 97871,
    "A100-SXM4-40GB": 40960,
    "A100-PCIE-40GB": 40960,
    "A100": 81920,
    "A10G": 23028,
    "A10": 23028,
    "L40S": 46068,
    "L4": 23034,
    "T4": 15360,
    "V100": 16384,
    "RTX A6000": 49140,
    "RTX 4090": 24564,
}
_CAPABILITY = {
    "B200": "10.0",
    "H100": "9.0",
    "H200": "9.0",
    "A100": "8.0",
    "A10": "8.6",
    "A6000": "8.6",
    "L4": "8.9",
    "4090": "8.9",
    "T4": "7.5",
    "V100": "7.0",
}


def gpu_memory_mib(gpu_name: str) -> int:
    """Memory of a GPU by the name that nvidia-smi prints; an H100's where the name is not known."""
    return next((mib for part, mib in _MEMORY_MIB.items() if part in gpu_name), 81559)


def gpu_uuid(machine: str, index: int) -> str:
    """A GPU's UUID: the same for the same machine and index, no two machines share one."""
    digest = hashlib.sha256(f"{machine}/{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def gpu_table(spec: MachineSpec) -> list[dict[str, object]]:
    """One entry for each GPU that shows up in the machine, as the nvidia-smi stand-in reads it."""
    capability = next((value for part, value in _CAPABILITY.items() if part in spec.gpu_name), "9.0")
    return [
        {
            "index": index,
            "name": spec.gpu_name,
            "uuid": gpu_uuid(spec.name, index),
            "pci_bus_id": f"00000000:{index // 24:02X}:{6 + index % 24:02X}.0",
            "memory_mib": gpu_memory_mib(spec.gpu_name),
            "compute_cap": capability,
            "serial": str(int(gpu_uuid(spec.name, index)[4:12], 16)).zfill(13),
        }
        for index in range(visible_gpus(spec))
    ]


def visible_gpus(spec: MachineSpec) -> int:
    """How many GPUs the machine has inside: those of its type less those that are missing by fault."""
    return max(0, spec.gpus - spec.missing_gpus)


def gpu_devices(spec: MachineSpec) -> list[str]:
    """Names below /dev of the GPUs' device files."""
    gpus = visible_gpus(spec)
    return [f"nvidia{index}" for index in range(gpus)] + (["nvidiactl"] if gpus else [])


def lay_out(spec: MachineSpec, address: str, root: Path) -> None:
    """Write the files that make a copy of an image this one machine.

    Args:
        spec: the machine.
        address: its IPv4 address.
        root: an empty or missing directory.
    """
    # GCE's images name the service so; where no name server is, this is all that does.
    more = f"{METADATA} metadata.google.internal metadata\n" if spec.labels.get("cloud") == "gce" else ""
    more += "".join(f"{where} {name}\n" for name, where in spec.names.items())
    names = f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{address} {spec.name}\n{more}"
    files = {"usr/share/sandbox/gpus.json": json.dumps(gpu_table(spec))}
    if spec.owned:
        files |= _owned(spec, spec.owned)
    elif not spec.pod:
        files |= {
            "etc/hostname": f"{spec.name}\n",
            "etc/hosts": names,
            "var/lib/cloud/seed/nocloud/meta-data": json.dumps(
                {"instance-id": f"i-{spec.name}", "local-hostname": spec.name}
            ),
            "var/lib/cloud/seed/nocloud/user-data": spec.user_data,
        }
        if spec.certificate:
            files["etc/ssl/certs/ca-certificates.crt"] = spec.certificate
    if spec.clock_offset_s:
        files["etc/clock-offset"] = f"{spec.clock_offset_s}\n"
        files["etc/ld.so.preload"] = "/usr/lib/sandbox/clockshift.so\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if spec.pod:
        return
    # Nobody types a passphrase here. Each of these units holds an inotify instance, of which a host has 128 for all of
    # root's programs: they are what limits how many machines there can be.
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    for name in ("console", "wall"):
        (units / f"systemd-ask-password-{name}.path").symlink_to("/dev/null")
    if spec.owned:
        return
    # What user data holds may be secret: root alone reads it, as on a cloud's machine.
    (root / "var/lib/cloud/seed/nocloud/user-data").chmod(0o600)


def _owned(spec: MachineSpec, owned: Owned) -> dict[str, str]:
    """The files of a machine that somebody has installed: an identity, names, trust."""
    names = "".join(f"{address} {name}\n" for name, address in owned.names.items())
    files = {
        "etc/hostname": f"{spec.name}\n",
        "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {spec.name}\n::1 localhost ip6-localhost\n{names}",
        "etc/machine-id": f"{hashlib.sha256(spec.name.encode()).hexdigest()[:32]}\n",
        # There is no name server: a closed port answers at once where an unreachable one stalls.
        "etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
    }
    if owned.certificate:
        files["etc/ssl/certs/ca-certificates.crt"] = owned.certificate
    return files
