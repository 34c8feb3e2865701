"""Machines: by systemd-nspawn with a booted systemd and cloud-init, or by runc as a pod, which has neither.

Each has its own network, and GPUs as device files. Machines whose image says so have a kernel of their own (`uml`).
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.sandbox import hardware, pods, proc, uml
from deploy.sandbox.cgroup import MachineGroups
from deploy.sandbox.hypervisor import MachineSpec
from deploy.sandbox.images import PODMAN, MachineImage
from deploy.sandbox.network import Network, Port
from deploy.sandbox.processes import PidFolder, ProcessId, children, innermost_pid, program_of, wait_gone

_LAUNCHER = Path(__file__).resolve().parent / "launch.sh"
_POD_LAUNCHER = Path(__file__).resolve().parent / "launch_pod.sh"
SHARE = "/var/lib/sandbox/share"
"""Where a machine has the files of the share (BACKING in image/share/mount_nfs4.c). Root alone reaches it."""
STOP_S = 10.0
_KILL_TIMEOUT_S = 30.0
_LAUNCH_TIMEOUT_S = 60.0
_POLL_S = 0.02
_EXCERPT = 500
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "xterm",
}


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or directory of the host that a machine sees too.

    Attributes:
        source: path on the host.
        target: path inside the machine.
        writable: whether the machine may change it.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class _Machine:
    spec: MachineSpec
    port: Port
    folder: Path
    process: subprocess.Popen[bytes]
    line: uml.Line | None = None
    """How commands get into it, where it has a kernel of its own."""


class NspawnHypervisor:
    """Boots machines on this host.

    Args:
        network: the sandbox's network, which is up.
        groups: the sandbox's control groups, which are up.
        state: an existing directory for the machines' files; nothing in it outlives `destroy` but consoles.
        image: finds (or builds) an image by the name that a spec gives.
        disk: the most that one machine may write, as tmpfs takes it: it is memory.
        share: the files of the share, which stand behind the machines' mount.nfs4; None: machines cannot mount any.
    """

    def __init__(
        self,
        network: Network,
        groups: MachineGroups,
        state: Path,
        image: Callable[[str], Awaitable[MachineImage]],
        disk: str = "4g",
        share: Path | None = None,
    ) -> None:
        self._network = network
        self._groups = groups
        self._state = state
        self._image = image
        self._disk = disk
        self._share = share
        self._images: dict[str, MachineImage] = {}
        self._machines: dict[str, _Machine] = {}
        self._starting: set[str] = set()
        self._pids = PidFolder(state / "pids")

    async def boot(self, spec: MachineSpec, binds: Sequence[Bind] = ()) -> str:
        """Start a machine and return its IPv4 address at once, while it still boots.

        Args:
            spec: the machine.
            binds: what it shares with the host, besides.

        Raises:
            RuntimeError: the machine could not be started; nothing of it is left.
        """
        if spec.name in self._machines or spec.name in self._starting:
            raise RuntimeError(f"machine {spec.name!r} exists already")
        self._starting.add(spec.name)
        try:
            if spec.image not in self._images:
                self._images[spec.image] = await self._image(spec.image)
            machine = await self._boot(spec, binds)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"machine {spec.name!r} could not be started: {error}") from error
        finally:
            self._starting.discard(spec.name)
        self._machines[spec.name] = machine
        return machine.port.address

    async def destroy(self, name: str) -> None:
        """Pull the plug and remove every trace but the console's text. Unknown names are ignored."""
        machine = self._machines.pop(name, None)
        if machine is None:
            return
        await self._kill(machine)
        await self._remove(name, machine.port, machine.folder)

    async def snapshot(self, name: str, image: str) -> None:
        """Make an image of the disk of a machine that is off: what it has written is a layer over its own image.

        Raises:
            RuntimeError: it runs, or keeps no disk.
        """
        machine = self._machines.get(name)
        if machine is None or machine.process.poll() is None or not (machine.folder / "kept").is_dir():
            raise RuntimeError(f"machine {name!r} has no disk to copy: it must be off, and keep its disk")
        layer = self._state / "images" / image
        layer.parent.mkdir(parents=True, exist_ok=True)
        await proc.run(["cp", "-a", machine.folder / "kept", layer], timeout_s=_LAUNCH_TIMEOUT_S)
        below = self._images[machine.spec.image]
        self._images[image] = replace(below, name=image, layers=(layer, *below.layers))

    def image_layer(self, image: str) -> Path:
        """What a machine had written of which an image was made.

        Raises:
            KeyError: there is no such image.
        """
        return self._images[image].layers[0]

    def alive(self, name: str) -> bool:
        """True while the machine runs; False once it has powered itself off or never was."""
        machine = self._machines.get(name)
        return machine is not None and machine.process.poll() is None

    def names(self) -> list[str]:
        """The machines that were booted and not destroyed, running or not."""
        return list(self._machines)

    def address(self, name: str) -> str:
        """A machine's IPv4 address in the sandbox's network.

        Raises:
            KeyError: there is no such machine.
        """
        return self._machines[name].port.address

    async def run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        check: bool = True,
    ) -> proc.Result:
        """Run a program inside a machine, as its root, and return what it printed.

        A machine that only just starts is waited for until its first process is there (not until it has booted); one
        with a kernel of its own, until it lets ssh in. In a pod the program has what `docker exec` would give it: the
        container's environment, capabilities and limits.

        Raises:
            KeyError: there is no such machine.
            RuntimeError: it does not run.
            CommandError: the program failed and `check` is set, or ran out of time.
        """
        words = await self._inside(self._machines[name], argv, timeout_s)
        return await proc.run(words, stdin=stdin, timeout_s=timeout_s, check=check, cwd=Path("/"))

    async def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs a program of a machine from the host, e.g. to read its output while it runs."""
        return await self._inside(self._machines[name], argv, 10.0)

    async def root(self, name: str) -> Path:
        """A machine's file system as the host sees it, sockets too; it leads nowhere once the machine is off.

        Raises:
            KeyError: there is no such machine.
            RuntimeError: it does not run, or has a kernel of its own, into which the host cannot look.
        """
        if self._machines[name].line:
            raise RuntimeError(f"machine {name!r} has a kernel of its own: run a program there")
        return Path(f"/proc/{await self._leader(self._machines[name], 10.0)}/root")

    async def socket(self, name: str, path: str) -> Path:
        """A Unix socket of a machine, as the host can connect to it.

        Raises:
            KeyError: there is no such machine.
            RuntimeError: it does not run.
            CommandError: it has a kernel of its own, and its end of the way to it does not work.
        """
        line = self._machines[name].line
        if line is None:
            return await self.root(name) / path.lstrip("/")
        await self._inside(self._machines[name], [], 10.0)
        return await line.socket(path)

    def console(self, name: str) -> str:
        """What a machine printed on its console so far; also of machines that are gone, until the sandbox is."""
        path = self._console(name)
        return path.read_text(errors="replace").replace("\r\n", "\n") if path.exists() else ""

    def pause(self, name: str) -> None:
        """Stop a machine where it is: it answers nothing and knows nothing of it.

        Raises:
            KeyError: there is no such machine.
        """
        self._groups.freeze(self._machines[name].spec.name, frozen=True)

    def resume(self, name: str) -> None:
        """Let a paused machine go on.

        Raises:
            KeyError: there is no such machine.
        """
        self._groups.freeze(self._machines[name].spec.name, frozen=False)

    async def crash(self, name: str) -> None:
        """Cut a machine's power: its peers are not told. Its record stays until `destroy`.

        Raises:
            KeyError: there is no such machine.
        """
        machine = self._machines[name]
        await self._network.set_link(machine.port, up=False)
        await self._kill(machine)

    async def power_on(self, name: str) -> None:
        """Boot a machine with a kernel of its own that is off, with what its disk held.

        Raises:
            KeyError: there is no such machine.
            ValueError: it has no disk that outlives its power.
            RuntimeError: it could not be started.
        """
        machine = self._machines[name]
        if machine.line is None:
            raise ValueError(f"machine {name!r} keeps nothing when it is off: boot another one")
        place = self._place(machine.port, machine.folder, name)
        words = uml.words(machine.spec, self._images[machine.spec.image], place)
        machine = replace(machine, process=self._start(machine.spec, words, again=True))
        self._machines[name] = machine
        await self._network.set_link(machine.port, up=True)
        await self._launched(machine)

    async def restart(self, name: str) -> None:
        """End a pod's container and start it again, with the same arguments and the same file system.

        Its first process gets SIGTERM, and after `STOP_S` seconds SIGKILL, as from Docker.

        Raises:
            KeyError: there is no such machine.
            ValueError: it is no pod.
            RuntimeError: it does not run.
        """
        machine = self._machines[name]
        if machine.spec.pod is None:
            raise ValueError(f"machine {name!r} is no pod: restart it from inside")
        process = ProcessId.of(await self._leader(machine, _LAUNCH_TIMEOUT_S))
        if process:
            process.kill(signal.SIGTERM)
            if not await wait_gone(process, STOP_S):
                process.kill(signal.SIGKILL)
                await wait_gone(process, _KILL_TIMEOUT_S)
        await self._leader(machine, _LAUNCH_TIMEOUT_S)

    async def set_link(self, name: str, *, up: bool) -> None:
        """Cut a machine's network cable without telling either side, or mend it.

        Raises:
            KeyError: there is no such machine.
        """
        await self._network.set_link(self._machines[name].port, up=up)

    async def aclose(self) -> None:
        """Destroy all machines."""
        await asyncio.gather(*(self.destroy(name) for name in self.names()))

    async def _boot(self, spec: MachineSpec, binds: Sequence[Bind]) -> _Machine:
        folder = self._state / "machines" / spec.name
        pod = spec.pod
        own_kernel = uml.is_uml(spec)
        if own_kernel:
            port = await self._network.attach_tap()
        else:
            behind = pod or spec.owned
            public = behind.ports if behind else None
            port = await self._network.attach(public, hard_nat=bool(pod and pod.hard_nat))
        machine = None
        try:
            (folder / "disk").mkdir(parents=True)
            hardware.lay_out(spec, port.address, folder / "skeleton")
            if spec.keeps_disk:
                (folder / "keep").touch()
            line = None
            if own_kernel:
                place = self._place(port, folder, spec.name)
                await uml.lay_out(spec, place, [(bind.source, bind.target, bind.writable) for bind in binds])
                line = uml.Line(self._network, place, spec.name, self._pids)
                words = uml.words(spec, self._images[spec.image], place)
            else:
                start = self._pod_words if spec.pod else self._machine_words
                words = start(spec, port, folder, binds)
            machine = _Machine(spec, port, folder, self._start(spec, words), line)
            await self._launched(machine)
        except BaseException:
            if machine:
                await self._kill(machine)
            await self._remove(spec.name, port, folder)
            raise
        return machine

    def _machine_words(self, spec: MachineSpec, port: Port, folder: Path, binds: Sequence[Bind]) -> list[str]:
        """The launcher of a machine that boots, and nspawn's command line."""
        gpus = hardware.visible_gpus(spec)
        devices = hardware.gpu_devices(spec)
        # It refuses openat2, by which newuidmap opens files: its flags could ask for a sync. podman starts newuidmap.
        no_sync = [] if spec.image.endswith(PODMAN) else ["--suppress-sync=yes"]
        shared = [f"--bind={folder}/disk/dev/fuse:/dev/fuse", f"--bind={self._share}:{SHARE}"] if self._share else []
        return [
            *("sh", str(_LAUNCHER), str(folder), self._images[spec.image].lowerdir, self._disk),
            *(self._groups.path_of(spec.name), str(gpus)),
            *("systemd-nspawn", "--quiet", "--boot", f"--machine={spec.name}", f"--directory={folder}/disk/root"),
            *("--register=no", "--keep-unit", "--settings=no", "--link-journal=no", *no_sync),
            *("--resolv-conf=off", "--timezone=off", "--console=read-only"),
            "--system-call-filter=@keyring",  # every machine has it, and crun wants a keyring for each container
            *(f"--network-namespace-path={port.namespace}", "--capability=CAP_NET_ADMIN"),
            f"--bind={folder}/disk/dev/tun:/dev/net/tun",
            *shared,
            *(f"--bind={folder}/disk/dev/{device}:/dev/{device}" for device in devices),
            *(f"--bind{'' if bind.writable else '-ro'}={bind.source}:{bind.target}" for bind in binds),
        ]

    def _pod_words(self, spec: MachineSpec, port: Port, folder: Path, binds: Sequence[Bind]) -> list[str]:
        """The launcher of a pod, whose config.json is written."""
        image = self._images[spec.image]
        place = pods.Place(folder, port.namespace, port.address, self._groups.path_of(spec.name))
        pods.lay_out(spec, image, place, [(bind.source, bind.target, bind.writable) for bind in binds])
        return ["sh", str(_POD_LAUNCHER), str(folder), image.lowerdir, self._disk, spec.name]

    def _place(self, port: Port, folder: Path, name: str) -> uml.Place:
        return uml.Place(folder, port, self._groups.path_of(name))

    def _start(self, spec: MachineSpec, words: Sequence[str], *, again: bool = False) -> subprocess.Popen[bytes]:
        self._console(spec.name).parent.mkdir(parents=True, exist_ok=True)
        with self._console(spec.name).open("ab" if again else "wb") as console:
            # Not asyncio's subprocess: `alive` has to answer without waiting, and no thread should watch each machine.
            process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", *words],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        self._pids.record(spec.name, process.pid)
        return process

    async def _launched(self, machine: _Machine) -> None:
        """Wait until all is mounted and the launcher runs nspawn, or a pod's first process."""
        deadline = asyncio.get_running_loop().time() + _LAUNCH_TIMEOUT_S
        while machine.process.poll() is None and asyncio.get_running_loop().time() < deadline:
            if machine.spec.pod:
                if (machine.folder / "pid").exists():
                    return
            elif machine.line:
                if leader_of(machine.process.pid):
                    return
            elif any(program_of(pid) == "systemd-nspawn" for pid in children(machine.process.pid)):
                return
            await asyncio.sleep(_POLL_S)
        name = machine.spec.name
        raise RuntimeError(f"machine {name!r} could not be started: {self.console(name).strip()[-_EXCERPT:]}")

    async def _remove(self, name: str, port: Port, folder: Path) -> None:
        """Remove what a machine that no longer runs has left."""
        await self._network.detach(port)
        self._groups.remove(name)
        self._pids.forget(name)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _inside(self, machine: _Machine, argv: Sequence[str], timeout_s: float) -> list[str]:
        leader = await self._leader(machine, timeout_s)
        if machine.line:
            if not await machine.line.up(timeout_s):
                raise RuntimeError(f"machine {machine.spec.name!r} does not let ssh in")
            return machine.line.inside(argv, _ENVIRONMENT)
        return pods.inside(machine.folder, machine.spec.name, argv) if machine.spec.pod else inside(leader, argv)

    async def _leader(self, machine: _Machine, timeout_s: float) -> int:
        """Pid, on the host, of a machine's first process."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        # Polled: a process that another one is about to fork announces itself to nobody.
        while machine.process.poll() is None and loop.time() < deadline:
            leader = leader_of(machine.process.pid)
            if leader:
                return leader
            await asyncio.sleep(_POLL_S)
        raise RuntimeError(f"machine {machine.spec.name!r} does not run: {self.console(machine.spec.name)[-_EXCERPT:]}")

    async def _kill(self, machine: _Machine) -> None:
        if machine.line:
            machine.line.down()
        leader = leader_of(machine.process.pid) if machine.process.poll() is None else None
        process = ProcessId.of(leader) if leader else None
        runner = ProcessId.of(next(iter(children(machine.process.pid)), 0))
        if machine.spec.pod:
            # Its launcher would start it again.
            machine.process.kill()
        if process:
            # With the first process of its PID namespace, all others of the machine die at once.
            process.kill(signal.SIGKILL)
            await wait_gone(process, _KILL_TIMEOUT_S)
        self._groups.kill(machine.spec.name)
        machine.process.kill()
        if machine.spec.pod and runner:
            await wait_gone(runner, _KILL_TIMEOUT_S)  # it removes its notes
        await asyncio.to_thread(machine.process.wait, _KILL_TIMEOUT_S)

    def _console(self, name: str) -> Path:
        return self._state / "consoles" / f"{name}.log"


def inside(leader: int, argv: Sequence[str]) -> list[str]:
    """The command line that runs a program in the machine whose first process is `leader`, as its root."""
    environment = [f"{key}={value}" for key, value in _ENVIRONMENT.items()]
    return ["nsenter", f"--target={leader}", "--all", "--", "/usr/bin/env", "-i", *environment, *argv]


def leader_of(launcher: int) -> int | None:
    """The pid, on the host, of the first process of a machine; None before it is there, and while it reboots.

    Args:
        launcher: the process that runs nspawn once for each boot of the machine, or runc for each start of the pod.
    """
    return next((pid for runner in children(launcher) for pid in children(runner) if _is_first(pid)), None)


def _is_first(pid: int) -> bool:
    """Whether a process is the first one of its namespace, and not still runc's own that becomes it."""
    return innermost_pid(pid) == 1 and not program_of(pid).startswith("runc:")
