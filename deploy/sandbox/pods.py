"""A pod's files on the host: its config.json for runc, and the files that are mounted over those of its image."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox import hardware, nat
from deploy.sandbox.container import Container, oci_config
from deploy.sandbox.hypervisor import MachineSpec, Pod
from deploy.sandbox.images import MachineImage

_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod is on the host.

    Attributes:
        folder: of its files.
        network: path of its network namespace.
        address: the address that it has outside.
        cgroup: its control group, as a path below the root of each hierarchy.
    """

    folder: Path
    network: Path
    address: str
    cgroup: str


def first_command(pod: Pod, image: MachineImage) -> list[str]:
    """The command line of a pod's first process: the image's entrypoint, and the pod's arguments or the image's.

    Raises:
        ValueError: a quote in the arguments is not closed, or there is nothing to run.
    """
    words = [*image.entrypoint, *(shlex.split(pod.args) or image.command)]
    if not words:
        raise ValueError(f"image {image.name} has no entrypoint, and the pod no arguments")
    return words


def lay_out(spec: MachineSpec, image: MachineImage, place: Place, binds: Sequence[tuple[Path, str, bool]] = ()) -> None:
    """Write the files of a pod that runc and its mounts need.

    Args:
        spec: the machine, which is a pod.
        image: its image.
        place: where it is; the folder exists.
        binds: what it shares with the host: (source, target, writable).

    Raises:
        ValueError: as `first_command`.
    """
    pod = spec.pod or Pod()
    hostname = pod.hostname or spec.name
    files, root = place.folder / "files", place.folder / "disk/root"
    files.mkdir()
    # Hidden by the launcher's mounts, but not from `runc exec`, which enters the container's path on the host first.
    root.mkdir(parents=True, exist_ok=True)
    (files / "hostname").write_text(f"{hostname}\n")
    (files / "hosts").write_text(
        f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{nat.ADDRESS}\t{hostname}\n"
        + "".join(f"{address}\t{name}\n" for name, address in pod.names.items())
    )
    if pod.certificate:
        trusted = place.folder / "skeleton/etc/ssl/certs/ca-certificates.crt"
        trusted.parent.mkdir(parents=True)
        trusted.write_text(pod.certificate)
    # There is no name server: a closed port answers at once where an unreachable one stalls.
    (files / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    address = {pod.address_variable: place.address} if pod.address_variable else {}
    container = Container(
        hostname=hostname,
        argv=first_command(pod, image),
        env={"HOSTNAME": hostname, "HOME": "/root", **pod.env, **address},
        root=root,
        files=files,
        network=place.network,
        cgroup=place.cgroup,
        cpus=pod.cpus,
        memory_mib=pod.memory_mib,
        devices=hardware.gpu_devices(spec),
        binds=binds,
    )
    config = place.folder / _CONFIG
    config.touch(mode=0o600)
    config.write_text(json.dumps(oci_config(container)))


def is_pod(folder: Path) -> bool:
    """Whether a machine's files on the host are a pod's."""
    return (folder / _CONFIG).exists()


def inside(folder: Path, name: str, argv: Sequence[str], *, tty: bool = False) -> list[str]:
    """The command line that runs a program in a pod, as `docker exec` does.

    Args:
        folder: the pod's files on the host.
        name: its name.
        argv: the program.
        tty: whether it gets a terminal of the pod.
    """
    return ["runc", "--root", str(folder / "runc"), "exec", *(["--tty"] if tty else []), name, *argv]
