"""PURE: a pod as Docker would run it, in the words of the OCI runtime specification.

Sources: Docker's defaults (moby, `oci/defaults.go` and `oci/caps/defaults.go`; the seccomp profile in
`profiles/seccomp`). As Docker does, the sandbox starts containers with runc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
"""What root has in a container that nobody gave more."""

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
_READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_FILES = ("hostname", "hosts", "resolv.conf")

_TUN = 10 << 8 | 200
"""The number of the TUN device."""

_CLONE_NEW = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""The flags of clone(2) that make a namespace."""
_DENIED = (
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module", "fanotify_init",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms", "get_mempolicy", "init_module",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load",
    "keyctl", "lookup_dcookie", "mbind", "mount", "mount_setattr", "move_mount", "move_pages", "nfsservctl",
    "open_by_handle_at", "open_tree", "perf_event_open", "pivot_root", "query_module", "quotactl", "quotactl_fd",
    "reboot", "request_key", "set_mempolicy", "setdomainname", "sethostname", "setns", "settimeofday", "stime",
    "swapoff", "swapon", "syslog", "umount", "umount2", "unshare", "uselib", "userfaultfd", "ustat", "vhangup",
    "vm86", "vm86old",
)  # fmt: skip
"""What Docker's seccomp profile keeps from a container with `CAPABILITIES`."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container.

    Attributes:
        hostname: its name; a container cannot change it.
        argv: of its first process.
        env: of its first process.
        root: path of its file system on the host.
        files: folder with `hostname`, `hosts` and `resolv.conf`, which are mounted over those of the image.
        network: path of its network namespace.
        cgroup: its control group, as a path below the root of each hierarchy.
        cpus: CPUs that it may use at a time.
        memory_mib: memory that it may use.
        devices: names below /dev of GPU device files.
        binds: files or folders of the host that are mounted into it: (source, target, writable).
    """

    hostname: str
    argv: Sequence[str]
    env: Mapping[str, str]
    root: Path
    files: Path
    network: Path
    cgroup: str
    cpus: float
    memory_mib: int
    devices: Sequence[str] = ()
    binds: Sequence[tuple[Path, str, bool]] = field(default_factory=tuple)


def oci_config(container: Container) -> dict[str, Any]:
    """The container's config.json.

    As in Docker: `no_new_privs` is off, so that setuid programs work; /sys and the control groups are read-only; no
    device but the usual ones and the GPUs can be made or opened.
    """
    granted = list(CAPABILITIES)
    return {
        "ociVersion": "1.0.2",
        "hostname": container.hostname,
        "root": {"path": str(container.root), "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(container.argv),
            "env": [PATH, *(f"{key}={value}" for key, value in container.env.items())],
            "cwd": "/",
            "capabilities": {"bounding": granted, "effective": granted, "permitted": granted},
            "noNewPrivileges": False,
            "oomScoreAdj": 0,
        },
        "mounts": _mounts(container),
        "linux": {
            "namespaces": [
                *({"type": kind} for kind in ("mount", "pid", "ipc", "uts", "cgroup")),
                {"type": "network", "path": str(container.network)},
            ],
            "cgroupsPath": f"/{container.cgroup}",
            "resources": _resources(container),
            "devices": [_gpu_device(name) for name in container.devices],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READONLY),
            "seccomp": _seccomp(),
        },
    }


def _mounts(container: Container) -> list[dict[str, Any]]:
    strict = ["nosuid", "noexec", "nodev"]
    return [
        _mount("/proc", "proc", strict),
        _mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        _mount("/sys", "sysfs", [*strict, "ro"]),
        _mount("/sys/fs/cgroup", "cgroup", [*strict, "relatime", "ro"]),
        _mount("/dev/mqueue", "mqueue", strict),
        _mount("/dev/shm", "tmpfs", [*strict, "mode=1777", "size=67108864"]),  # noqa: S108 - inside the container
        *(_bind(container.files / name, f"/etc/{name}", writable=True) for name in _FILES),
        *(_bind(source, target, writable=writable) for source, target, writable in container.binds),
    ]


def _mount(target: str, kind: str, options: list[str]) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": kind, "options": options}


def _bind(source: Path, target: str, *, writable: bool) -> dict[str, Any]:
    options = ["rbind", "rprivate", "rw" if writable else "ro"]
    return {"destination": target, "type": "bind", "source": str(source), "options": options}


def _resources(container: Container) -> dict[str, Any]:
    period_us = 100_000
    return {
        "memory": {"limit": container.memory_mib * 1024 * 1024},
        "cpu": {"period": period_us, "quota": int(container.cpus * period_us)},
        # runc allows the usual devices besides; a container may make the file of any other, and not open it.
        "devices": [{"allow": False, "access": "rwm"}],
    }


def _gpu_device(name: str) -> dict[str, Any]:
    """A GPU is a device file that opens, here the kernel's null device. NVIDIA's runtime gives everybody the rights."""
    return {"path": f"/dev/{name}", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}


def _seccomp() -> dict[str, Any]:
    refused = {"action": "SCMP_ACT_ERRNO", "errnoRet": 1}
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            {"names": list(_DENIED), **refused},
            *({"names": ["clone"], **refused, "args": [_has_flag(flag)]} for flag in _CLONE_NEW),
            # No filter can read the flags of clone3(2): it is not implemented, and libraries use clone(2) instead.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
            # On RunPod `mknod /dev/net/tun c 10 200` is not permitted. runc before 1.2 allows it, and to open it.
            {"names": ["mknod"], **refused, "args": [_equals(2, _TUN)]},
            {"names": ["mknodat"], **refused, "args": [_equals(3, _TUN)]},
        ],
    }


def _has_flag(flag: int) -> dict[str, Any]:
    return {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}


def _equals(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}
