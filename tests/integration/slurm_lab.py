"""Hosts in a box for Slurm alone: each is an image under an overlay in namespaces of its own, all on one bridge.

Nothing of the machine is touched: mounts live in private mount namespaces, the bridge in an anonymous network
namespace, and all of it ends with the processes that hold it. Needs root and `unshare`, `nsenter`, `ip`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.node.meshd_node.slurm_local import DISABLED_SINCE
from meshd.runtime.run import Result, run
from meshd.slurm.capabilities import parse_version

NETWORK = "100.64.77"
GPUS = 8

QUICK_START = "SchedulerParameters=batch_sched_delay=0,sched_interval=5"
"""A job starts when it is submitted, rather than up to 3 s later; and slurmctld looks again after 5 s, not 60."""

CONF = f"""
ClusterName=lab
SlurmctldHost=head({NETWORK}.1)
SlurmUser=slurm
{QUICK_START}
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldParameters=enable_configless
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SelectType=select/cons_tres
"""
"""The begin of a slurm.conf for slurmds that get it from the head: what is selected and how is for the test to say."""

POWER_CONF = CONF.replace("=enable_configless", "=enable_configless,idle_on_node_suspend,power_save_interval=1")
"""The same with power saving: slurmctld looks each second, not all 10 s, which nodes it powers up and down."""

CALL_S = 60.0
"""For one command in a host: most take some milliseconds."""

START_S = 100.0
"""For a job to start: where Slurm misses the event that lets it, it looks again after sched_interval."""

_SWITCH = "ip link set lo up && ip link add br0 type bridge && ip link set br0 up && exec sleep infinity"

_INIT = r"""
set -e
image=$1 box=$2 name=$3
hostname "$name"
mount -t tmpfs -o mode=755 tmpfs "$box/scratch"
mkdir "$box/scratch/upper" "$box/scratch/work"
mount -t overlay -o "lowerdir=$image,upperdir=$box/scratch/upper,workdir=$box/scratch/work" overlay "$box/root"
root=$box/root
mkdir -p "$root/etc/slurm" "$root/etc/munge" "$root/var/lib/meshd-slurm" "$root/shared"
mount --bind "$box/slurm" "$root/etc/slurm"
mount --bind "$box/files" "$root/var/lib/meshd-slurm"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir "$root/dev/shm"; chmod 1777 "$root/dev/shm"
for spec in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$root/dev/${spec%:*}" c 1 "${spec#*:}"; done
for n in 0 1 2 3 4 5 6 7; do mknod -m 666 "$root/dev/nvidia$n" c 1 3; done
ln -s /proc/self/fd "$root/dev/fd"
cp "$box/munge.key" "$root/etc/munge/munge.key"
cp "$box/hosts" "$root/etc/hosts"
ip link set lo up
cd "$root"; pivot_root . . && umount -l . && exec chroot . /bin/sh -c '
chown munge:munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key
install -d -o munge -g munge -m 755 /run/munge /var/log/munge /var/lib/munge
install -d -o slurm -g slurm -m 755 /var/spool/slurmctld /var/log/slurm /run/slurm
install -d -m 755 /var/spool/slurmd
touch /run/ready
trap : TERM HUP; while :; do sleep 3600 & wait $!; done'
"""


@dataclass
class Host:
    """One host. `call` runs a program in it and returns what it printed on stdout, `said` with stderr too."""

    name: str
    address: str
    box: Path
    process: subprocess.Popen[bytes]
    pid: int

    @property
    def conf_dir(self) -> Path:
        """Its /etc/slurm, seen from outside."""
        return self.box / "slurm"

    @property
    def files_dir(self) -> Path:
        """Its /var/lib/meshd-slurm, seen from outside."""
        return self.box / "files"

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The argv that runs `argv` inside."""
        namespaces = ["-m", "-u", "-i", "-n", "-p", "-r", "-w"]
        return ["nsenter", "-t", str(self.pid), *namespaces, "--", *argv]

    def call(self, *argv: str, check: bool = True) -> str:
        """Run a program inside; its stdout alone: srun and sbatch say on stderr what else they think of."""
        done = self._run(argv)
        if check and done.returncode:
            raise AssertionError(
                f"{self.name}: {' '.join(argv)} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done.stdout

    def said(self, *argv: str) -> str:
        """Run a program inside; its stdout and stderr, whatever it ended with."""
        done = self._run(argv)
        return done.stdout + done.stderr

    def _run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CALL_S, check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip

    async def runner(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        """meshd's Runner, inside this host, as SlurmUser: the daemon is not root."""
        user = ["setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups"]
        return await run(self.argv([*user, *argv]), timeout_s=timeout_s, stdin=stdin, env=env, check=check)

    def alive(self, daemon: str) -> bool:
        """The daemon runs."""
        script = f'kill -0 "$(cat {_pidfile(daemon)})" 2>/dev/null && echo yes'
        return self.call("sh", "-c", script, check=False).endswith("yes\n")

    def start_munged(self) -> None:
        """Start munged and wait until it encodes."""
        self.call("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--num-threads=2")
        wait_until(lambda: "MUNGE" in self.call("munge", "-n", check=False), f"munged on {self.name}")

    def start_slurmctld(self, *, wait: bool = True) -> None:
        """Start slurmctld; with `wait` until it answers."""
        self.call("slurmctld", check=wait)
        if wait:
            wait_until(lambda: "is UP" in self.call("scontrol", "ping", check=False), "slurmctld")

    def start_slurmd(self, *args: str) -> None:
        """Start slurmd."""
        try:
            self.call("slurmd", *args)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log('slurmd')[-2000:]}") from error

    def without_cgroups(self) -> None:
        """Write a cgroup.conf with which slurmd starts here: the namespaces have no control groups."""
        release = parse_version(self.call("slurmctld", "-V")).release
        plugin = "disabled" if release >= DISABLED_SINCE else "cgroup/v1"
        (self.conf_dir / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")

    def stop(self, daemon: str, *, sig: str = "TERM") -> None:
        """Stop a daemon and wait for its end, which comes after that of its pid file. One that has ended is fine."""
        pid = self.call("cat", _pidfile(daemon), check=False).strip()
        if pid:
            self.call("sh", "-c", f"kill -{sig} {pid}", check=False)
            there = ("sh", "-c", f"test ! -e /proc/{pid} || echo yes")
            wait_until(lambda: self.call(*there) == "", f"the end of {daemon}")

    def log(self, daemon: str) -> str:
        """A daemon's log."""
        return self.call("cat", f"/var/log/slurm/{daemon}.log", check=False)


@dataclass
class Lab:
    """Hosts on one bridge; the first added is the head."""

    image: str
    base: Path
    suite: str = ""
    hosts: dict[str, Host] = field(default_factory=dict)
    _switch: subprocess.Popen[bytes] | None = None
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(128))

    def start(self, names: Sequence[str]) -> None:
        """Bring up the hosts with munged running on each."""
        switch = self._switch = subprocess.Popen(["unshare", "--net", "sh", "-c", _SWITCH], stdin=subprocess.DEVNULL)
        addresses = {name: f"{NETWORK}.{i + 1}" for i, name in enumerate(names)}
        # Before it has a network of its own, the machine's would be looked at.
        wait_until(lambda: _network(str(switch.pid)) != _network("self"), "the network of the bridge")
        wait_until(lambda: b"br0" in self._in_switch("ip", "link", "show", "dev", "br0", "up"), "the bridge")
        for name, address in addresses.items():
            self._add(name, address, addresses)
        for host in self.hosts.values():
            host.start_munged()

    def remove(self, name: str) -> None:
        """End a host at once, as a cloud does."""
        host = self.hosts.pop(name)
        _kill(host.process, host.pid)
        _ended(host.process)

    def readdress(self, name: str, address: str) -> None:
        """Give a host another address in place of the one that it has."""
        host = self.hosts[name]
        for verb, value in (("del", host.address), ("add", address)):
            argv = ["nsenter", "-t", str(host.pid), "-n", "--", "ip", "addr", verb, f"{value}/24", "dev", "eth0"]
            subprocess.run(argv, check=True, timeout=10)
        host.address = address

    def close(self) -> None:
        """End everything. Safe to call twice."""
        processes = [host.process for host in self.hosts.values()]
        for host in self.hosts.values():
            _kill(host.process, host.pid)
        if self._switch:
            processes.append(self._switch)
            _kill(self._switch, self._switch.pid)
        for process in processes:
            _ended(process)
        self.hosts.clear()
        self._switch = None
        shutil.rmtree(self.base, ignore_errors=True)

    def _in_switch(self, *argv: str) -> bytes:
        assert self._switch
        done = subprocess.run(
            ["nsenter", "-t", str(self._switch.pid), "-n", "--", *argv], capture_output=True, check=False, timeout=10
        )
        return done.stdout

    def _add(self, name: str, address: str, addresses: Mapping[str, str]) -> None:
        assert self._switch
        box = self.base / name
        for part in ("scratch", "root", "slurm", "files"):
            (box / part).mkdir(parents=True)
        os.chmod(self.base, 0o755)
        (box / "munge.key").write_bytes(self._key)
        # Slots have other names than hosts: only the hosts' own names resolve.
        lines = ["127.0.0.1 localhost", *(f"{ip} {host}" for host, ip in addresses.items())]
        (box / "hosts").write_text("\n".join(lines) + "\n")
        process = subprocess.Popen(
            ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child",
             "--propagation", "private", "sh", "-c", _INIT, "init", self.image, str(box), name],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            pid = _child(process)
        except BaseException:
            process.kill()
            raise
        host = self.hosts[name] = Host(name, address, box, process, pid)

        def ready() -> bool:
            assert process.poll() is None, f"host {name} ended with {process.returncode}: see what it said on stderr"
            return host.call("sh", "-c", "test -e /run/ready && echo yes", check=False) == "yes\n"

        wait_until(ready, f"host {name}")
        veth = f"v{len(self.hosts)}"
        commands = [
            ["ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", str(pid)],
            ["ip", "link", "set", veth, "master", "br0", "up"],
        ]
        for argv in commands:
            subprocess.run(["nsenter", "-t", str(self._switch.pid), "-n", "--", *argv], check=True, timeout=10)
        for argv in (["ip", "addr", "add", f"{address}/24", "dev", "eth0"], ["ip", "link", "set", "eth0", "up"]):
            subprocess.run(["nsenter", "-t", str(pid), "-n", "--", *argv], check=True, timeout=10)


def _pidfile(daemon: str) -> str:
    return "/run/munge/munged.pid" if daemon == "munged" else f"/run/slurm/{daemon}.pid"


def _child(process: subprocess.Popen[bytes]) -> int:
    """The namespace's first process, child of `unshare`."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found: list[str] = []

    def there() -> bool:
        found[:] = children.read_text().split()
        return bool(found)

    wait_until(there, "the namespaces")
    return int(found[0])


def _network(pid: str) -> int:
    """Which network a process is in."""
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def _kill(process: subprocess.Popen[bytes], pid: int) -> None:
    """Begin to end the first process of a namespace, and with it all of the namespace."""
    if process.poll() is None:
        os.kill(pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.wait(timeout=30)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait until `condition()` is true. The time is for a machine that is busy with other things."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.05)
