"""Machines with a kernel of their own: user-mode Linux, a kernel that is a program of the host.

Such a machine has what the host's kernel keeps from a container: file systems that are mounted by the kernel (NFS, also
as its server), kernel modules, queueing disciplines (netem), a disk that outlives a power cut. Nobody can look into
it from outside: commands reach it by ssh, from the sandbox's gateway.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox import hardware, proc
from deploy.sandbox.hypervisor import MachineSpec
from deploy.sandbox.images import UML, MachineImage
from deploy.sandbox.network import GATEWAY, Network, Port
from deploy.sandbox.processes import PidFolder

MEMORY_MIB = 1024
"""What a machine sees. The host gives it only what it uses."""

_LAUNCHER = Path(__file__).resolve().parent / "launch_uml.sh"
_KEY = "ssh_key"
_KEYGEN_TIMEOUT_S = 20.0
_FORWARD_TIMEOUT_S = 20.0
_POLL_S = 0.1
_SSHD_CONFIG = "AuthorizedKeysFile .ssh/authorized_keys /etc/sandbox/authorized_keys\n"
_QUIET = (
    *("-F", "none", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5"),
    # The machine is made again each time, and whoever could answer in its place is part of the sandbox too.
    *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
)


def is_uml(spec: MachineSpec) -> bool:
    """Whether a machine has a kernel of its own: its image says so."""
    return spec.image.endswith(UML)


@dataclass(frozen=True, slots=True)
class Place:
    """Where such a machine is on the host.

    Attributes:
        folder: of its files.
        port: its place on the bridge.
        cgroup: its control group, as a path below the root of the hierarchy.
    """

    folder: Path
    port: Port
    cgroup: str


async def lay_out(spec: MachineSpec, place: Place, binds: Sequence[tuple[Path, str, bool]]) -> None:
    """Write what the machine's first process reads, and the key that opens it, into the folder's `skeleton`.

    Args:
        spec: the machine.
        place: where it is; the folder exists.
        binds: directories that it shares with the host: (source, target, writable).

    Raises:
        CommandError: no key could be made.
    """
    key, files = place.folder / _KEY, place.folder / "skeleton/etc/sandbox"
    await proc.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], timeout_s=_KEYGEN_TIMEOUT_S)
    files.mkdir(parents=True)
    (files / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    (files / "authorized_keys").chmod(0o600)
    lines = (f"{source} {target} {'rw' if writable else 'ro'}\n" for source, target, writable in binds)
    (files / "binds").write_text("".join(lines))
    (files / "devices").write_text("".join(f"{name}\n" for name in hardware.gpu_devices(spec)))
    sshd = place.folder / "skeleton/etc/ssh/sshd_config.d/sandbox-uml.conf"
    sshd.parent.mkdir(parents=True)
    sshd.write_text(_SSHD_CONFIG)


def words(spec: MachineSpec, image: MachineImage, place: Place) -> list[str]:
    """The command line that runs the machine. What it writes goes to `disk/cow`, and is there at its next start.

    Args:
        spec: the machine.
        image: its image, which has a disk and a kernel.
        place: where it is.
    """
    folder, port = place.folder, place.port
    layers = ":".join(str(layer) for layer in (*reversed(image.layers), folder / "skeleton"))
    return [
        *("nsenter", f"--net={port.namespace}", "--", "sh", str(_LAUNCHER)),
        *(place.cgroup, str(image.kernel), f"mem={MEMORY_MIB}M"),
        *(f"umid={spec.name}", f"uml_dir={folder}/disk", f"ubd0={folder}/disk/cow,{image.disk}"),
        *("root=/dev/ubda", "rootfstype=ext4", "ro", "con=null", "con0=null,fd:1"),
        # Without gro=1 the machine drops the large packets that the host's kernel makes.
        f"vec0:transport=tap,ifname={port.link},depth=128,gro=1,mac=02:77:00:00:00:{port.number:02x}",
        *("init=/usr/sbin/sandbox-init", f"files={layers}", f"address={port.address}", f"gateway={GATEWAY}"),
        # cloud-init takes half of the boot; a machine without user data needs none of it.
        *([] if spec.user_data else ["cloud-init=disabled"]),
    ]


class Line:
    """The connection over which commands go to one machine.

    Args:
        network: the sandbox's network.
        place: where the machine is.
        name: the machine's name.
        pids: where the connection's process is noted.
    """

    def __init__(self, network: Network, place: Place, name: str, pids: PidFolder) -> None:
        self._network = network
        self._place = place
        self._note = f"{name}-ssh"
        self._pids = pids
        self._master: subprocess.Popen[bytes] | None = None
        self._sockets: set[Path] = set()
        self._lock = asyncio.Lock()

    @property
    def _socket(self) -> Path:
        return self._place.folder / "ssh"

    def inside(self, argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """The command line that runs a program in the machine, as its root, once `up` has been waited for."""
        variables = [f"{key}={value}" for key, value in environment.items()]
        command = shlex.join(["env", "-i", *variables, *argv])
        return self._ssh(self._target, "--", command)

    async def up(self, timeout_s: float) -> bool:
        """Connect if there is no connection; False where the machine did not answer in this time."""
        async with self._lock:
            deadline = asyncio.get_running_loop().time() + timeout_s
            while not self._stands():
                if asyncio.get_running_loop().time() >= deadline:
                    return False
                if self._master is None or self._master.poll() is not None:
                    self._connect()
                await asyncio.sleep(_POLL_S)
            return True

    async def socket(self, path: str) -> Path:
        """A Unix socket of the machine, as the host sees it: ssh carries what is said there.

        Raises:
            CommandError: the connection does not stand, or its other end refused.
        """
        local = self._place.folder / f"socket-{path.strip('/').replace('/', '-')}"
        if local not in self._sockets:
            local.unlink(missing_ok=True)
            forward = self._ssh("-O", "forward", "-L", f"{local}:{path}", self._target)
            await proc.run(forward, timeout_s=_FORWARD_TIMEOUT_S)
            self._sockets.add(local)
        return local

    def down(self) -> None:
        """End the connection; nothing happens where there is none."""
        if self._master is not None:
            self._master.kill()
            self._master.wait()
            self._master = None
        self._sockets.clear()
        self._socket.unlink(missing_ok=True)
        self._pids.forget(self._note)

    @property
    def _target(self) -> str:
        return f"root@{self._place.port.address}"

    def _ssh(self, *rest: str) -> list[str]:
        key = ("-i", str(self._place.folder / _KEY))
        return self._network.enter(["ssh", *_QUIET, *key, "-S", str(self._socket), *rest])

    def _connect(self) -> None:
        self._sockets.clear()
        self._socket.unlink(missing_ok=True)
        self._master = subprocess.Popen(
            self._ssh("-M", "-N", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8", self._target),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        self._pids.record(self._note, self._master.pid)

    def _stands(self) -> bool:
        """Whether there is a connection that takes commands: ssh makes its socket when it is through."""
        return self._master is not None and self._master.poll() is None and self._socket.exists()
