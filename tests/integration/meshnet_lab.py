"""Pods and a machine with a TUN device on one real tailnet: namespaces, tailscaled, meshnetd, all real.

A pod has a network and a mount namespace of its own, tailscaled in user space, and meshnetd; its /run is its own, so
all paths are the product's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.integration.tailnet_lab import ADDRESS, CONTROL_PORT, TailnetLab, programs

SOURCES = Path(__file__).resolve().parents[2] / "deploy/container/meshnet"
T = TypeVar("T")

STARTED_S = 60.0
"""For what a process does at its start: many times what it takes."""


def wait_until(look: Callable[[], T], what: str, within_s: float = STARTED_S) -> T:
    """Look again and again until what is seen is true; that."""
    end = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}; last seen: {seen!r}"
        time.sleep(0.01)
    return seen


class Machine:
    """One machine: its namespaces, and the processes in it."""

    def __init__(self, lab: MeshnetLab, name: str, number: int) -> None:
        self.lab, self.name, self.number = lab, name, number
        self.folder = lab.folder / name
        self.folder.mkdir()
        self.ipv4 = self.ipv6 = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._holder: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        ns, far, near = f"{self.lab.net.namespace}-{self.number}", f"10.79.{self.number}.1", f"10.79.{self.number}.2"
        self.namespace = ns
        outside = ["ip", "-n", self.lab.net.namespace]
        for words in (
            ["ip", "netns", "add", ns],
            ["ip", "-n", ns, "link", "set", "lo", "up"],
            [*outside, "link", "add", f"pod{self.number}", "type", "veth", "peer", "name", "eth0", "netns", ns],
            [*outside, "addr", "add", f"{far}/30", "dev", f"pod{self.number}"],
            [*outside, "link", "set", f"pod{self.number}", "up"],
            ["ip", "-n", ns, "addr", "add", f"{near}/30", "dev", "eth0"],
            ["ip", "-n", ns, "link", "set", "eth0", "up"],
            ["ip", "-n", ns, "route", "add", "default", "via", far],
        ):
            subprocess.run(words, check=True, timeout=30)
        script = "mount -t tmpfs tmpfs /run && mkdir -p /run/tailscale /run/lock && echo up && exec sleep infinity"
        self._holder = subprocess.Popen(
            ["ip", "netns", "exec", ns, "unshare", "-m", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"

    @property
    def inside(self) -> list[str]:
        """What a command line begins with to run in the machine."""
        assert self._holder is not None
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", f"--net=/proc/{self._holder.pid}/ns/net"]

    def path(self, path: str) -> Path:
        """A path of the machine, as this process sees it."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def start(self, service: str, *words: str) -> None:
        assert service not in self._processes, f"{service} runs already"
        with (self.folder / f"{service}.log").open("ab") as log:
            self._processes[service] = subprocess.Popen(
                [*self.inside, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TS_NO_LOGS_NO_SUPPORT": "1"},
                start_new_session=True,
            )

    def pid(self, service: str) -> int:
        return self._processes[service].pid

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()

    def kill(self, service: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self._processes.pop(service)
        assert process.poll() is None, f"{service} has ended with {process.returncode}: {self.log(service)[-2000:]}"
        process.send_signal(number)
        process.wait(30)

    def signal(self, service: str, number: signal.Signals) -> None:
        self._processes[service].send_signal(number)

    def start_tailscaled(self, *words: str) -> None:
        self.path("/run/tailscale/tailscaled.sock").unlink(missing_ok=True)
        program = str(self.lab.bin / "tailscaled")
        self.start("tailscaled", program, f"--statedir={self.folder / 'state'}", "--port=41641", *words)
        wait_until(self.path("/run/tailscale/tailscaled.sock").exists, f"tailscaled of {self.name}")

    def join(self) -> None:
        tailscale = [*self.inside, str(self.lab.bin / "tailscale")]
        up = [f"--login-server=http://{ADDRESS}:{CONTROL_PORT}", f"--auth-key={self.lab.net.auth_key}"]
        more = [f"--hostname={self.name}", "--accept-dns=false", "--timeout=60s"]
        subprocess.run([*tailscale, "up", *up, *more], check=True, timeout=90, capture_output=True)
        found = subprocess.run([*tailscale, "ip"], check=True, timeout=30, capture_output=True, text=True)
        self.ipv4, self.ipv6 = found.stdout.split()

    def knows(self, address: str) -> bool:
        """Whether its tailscaled has a peer at an address. After its start it listens before it knows its peers."""
        words = [*self.inside, str(self.lab.bin / "tailscale"), "whois", address]
        return subprocess.run(words, timeout=30, capture_output=True, check=False).returncode == 0

    def run(self, *words: str, timeout_s: float = 60, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine."""
        return subprocess.run([*self.inside, *words], timeout=timeout_s, capture_output=True, text=True, **more)

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in the machine, with pipes to it and from it."""
        pipe = subprocess.PIPE
        return subprocess.Popen([*self.inside, *words], stdin=pipe, stdout=pipe, text=True)

    def down(self) -> None:
        for process in [*self._processes.values(), *([self._holder] if self._holder else [])]:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(30)
        if self._holder and self._holder.stdout:
            self._holder.stdout.close()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, timeout=30)


class Pod(Machine):
    """A machine without a TUN device. What runs there has the library, as its ld.so.preload would give it."""

    def up(self) -> None:
        super().up()
        self.start_tailscaled()
        self.join()
        self.start_meshnetd()

    def start_tailscaled(self, *words: str) -> None:
        proxies = ("--socks5-server=127.0.0.1:1055", "--outbound-http-proxy-listen=127.0.0.1:1055")
        super().start_tailscaled("--tun=userspace-networking", *proxies, *words)

    def start_meshnetd(self, *words: str) -> None:
        # It has the library too, as its ld.so.preload would give it.
        preload = [f"LD_PRELOAD={self.lab.built / 'libmeshnet.so'}", "ASAN_OPTIONS=verify_asan_link_order=0"]
        self.start("meshnetd", "env", *preload, str(self.lab.built / "meshnetd"), *words)
        wait_until(lambda: self._self_file() == [self.ipv4, self.ipv6], f"meshnetd of {self.name} knows its addresses")
        wait_until(self._listens, f"meshnetd of {self.name} listens")

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            return client.connect_ex(str(self.path("/run/meshnet/meshnetd.sock"))) == 0

    def _self_file(self) -> list[str]:
        try:
            return self.path("/run/meshnet/self").read_text().split()
        except FileNotFoundError:
            return []

    def run(self, *words: str, timeout_s: float = 60, **more: Any) -> subprocess.CompletedProcess[str]:
        return super().run("env", f"LD_PRELOAD={self.lab.built / 'libmeshnet.so'}", *words, timeout_s=timeout_s, **more)

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        return super().spawn("env", f"LD_PRELOAD={self.lab.built / 'libmeshnet.so'}", *words)


class Vm(Machine):
    """A machine with a TUN device."""

    def up(self) -> None:
        super().up()
        self.start_tailscaled("--tun=ts-lab")
        self.join()


class MeshnetLab:
    """The tailnet and its machines. Its event loop runs in a thread of its own, so that one lab serves many tests."""

    def __init__(self, folder: Path, sanitized: bool) -> None:
        self.folder, self.sanitized = folder, sanitized
        self.built = folder / "built"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.machines: list[Machine] = []
        self.net: TailnetLab

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def build(self) -> None:
        build = str(SOURCES / "build")
        subprocess.run([build, str(self.built)], check=True, timeout=120)
        if not self.sanitized:
            return
        options = {**os.environ, "CFLAGS": "-fsanitize=address,undefined -fno-sanitize-recover=all"}
        subprocess.run([build, str(self.folder / "sanitized")], check=True, timeout=120, env=options)
        (self.folder / "sanitized/meshnetd").replace(self.built / "meshnetd")

    def up(self) -> None:
        self.folder.chmod(0o755)  # programs of other users load the library too
        self.build()
        self._thread.start()
        (self.folder / "net").mkdir()
        self.net = TailnetLab(self.folder / "net", *self.call(programs()))
        self.bin = self.folder / "net/bin"
        self.call(self.net.up())
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        subprocess.run(["ip", "netns", "exec", self.net.namespace, "sh", "-c", forward], check=True, timeout=30)

    def add(self, kind: Callable[[MeshnetLab, str, int], Machine], name: str) -> Any:
        machine = kind(self, name, len(self.machines) + 1)
        self.machines.append(machine)
        machine.up()
        return machine

    def down(self) -> None:
        for machine in self.machines:
            machine.down()
        if hasattr(self, "net"):
            self.call(self.net.down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


@contextlib.contextmanager
def meshnet_lab(folder: Path, sanitized: bool = False) -> Iterator[MeshnetLab]:
    """A running lab with nobody in it.

    Args:
        folder: an empty one, for all its files.
        sanitized: whether meshnetd, which takes what every local user sends, is built with AddressSanitizer and UBSan.
    """
    lab = MeshnetLab(folder, sanitized)
    try:
        lab.up()
        yield lab
    finally:
        lab.down()
