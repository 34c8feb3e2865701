"""A real tailnet in one network namespace: the sandbox's control server and several tailscaled, each a process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from deploy.sandbox import gotools
from tests.waiting import until

ADDRESS = "10.78.0.1"
API_PORT = 8099
API_TOKEN = "tskey-api-test"
CLONE_NEWNET = 0x40000000


async def programs() -> tuple[Path, Path]:
    """The control server and tailscaled (which is tailscale too, by name)."""
    control, tailscale = await gotools.ensure_control(), await gotools.ensure_tailscale()
    if control.is_dir():
        control = next(path for path in sorted(control.rglob("control")) if path.is_file())
    return control, tailscale / "usr/sbin/tailscaled"


class TailnetLab:
    """All of it. Nothing of the host's own network is touched, and `down` leaves nothing behind."""

    def __init__(self, folder: Path, control: Path, tailscaled: Path) -> None:
        self.namespace = f"tg-{os.getpid()}"
        self.folder = folder
        self._control = control
        self._bin = folder / "bin"
        self._bin.mkdir()
        for name in ("tailscale", "tailscaled"):
            (self._bin / name).symlink_to(tailscaled)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._relay: asyncio.Server | None = None
        self.api_url = ""
        self.auth_key = ""

    async def up(self) -> None:
        ip = ["ip", "-n", self.namespace]
        for words in (
            ["ip", "netns", "add", self.namespace],
            [*ip, "link", "set", "lo", "up"],
            [*ip, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"],
            [*ip, "addr", "add", f"{ADDRESS}/24", "dev", "eth0"],
            [*ip, "link", "set", "eth0", "up"],
            [*ip, "link", "set", "eth1", "up"],
            [*ip, "route", "add", "default", "via", "10.78.0.2"],
        ):
            subprocess.run(words, check=True, timeout=10)
        resolv = Path("/etc/netns") / self.namespace
        resolv.mkdir(parents=True)
        (resolv / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        self._start(
            "control",
            [str(self._control), "-ip", ADDRESS, "-admin", f"{ADDRESS}:{API_PORT}", "-api-key", API_TOKEN],
        )
        self._relay = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.api_url = f"http://127.0.0.1:{self._relay.sockets[0].getsockname()[1]}"
        create = {"reusable": True, "preauthorized": True, "tags": ["tag:gpu"]}
        async with asyncio.timeout(30):
            while not self.auth_key:
                with contextlib.suppress(OSError):
                    answer = await self.api("POST", "tailnet/-/keys", {"capabilities": {"devices": {"create": create}}})
                    self.auth_key = answer["key"]
                await asyncio.sleep(0.05)

    async def down(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        if self._relay:
            self._relay.close()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, timeout=10)
        shutil.rmtree(f"/etc/netns/{self.namespace}", ignore_errors=True)

    def socket_of(self, name: str) -> Path:
        return self.folder / f"{name}.sock"

    def start(self, name: str) -> None:
        """Start a tailscaled; with the state of an earlier one of that name it joins by itself."""
        port = 41641 + sum(name.encode()) % 1000
        words = [str(self._bin / "tailscaled"), "--tun=userspace-networking", f"--statedir={self.folder / name}"]
        self._start(name, [*words, f"--socket={self.socket_of(name)}", f"--port={port}"])

    async def join(self, name: str) -> None:
        """Start a tailscaled and log it in."""
        self.start(name)
        async with asyncio.timeout(30):
            while not self.socket_of(name).exists():  # noqa: ASYNC110 - a process of its own makes it
                await asyncio.sleep(0.01)
        await self.tailscale(
            name,
            "up",
            f"--login-server=http://{ADDRESS}:8080",
            f"--auth-key={self.auth_key}",
            f"--hostname={name}",
            "--accept-dns=false",
            "--timeout=20s",
        )

    async def tailscale(self, name: str, *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "ip",
            "netns",
            "exec",
            self.namespace,
            str(self._bin / "tailscale"),
            f"--socket={self.socket_of(name)}",
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, out
        return out.decode()

    async def status(self, name: str, *words: str) -> dict[str, Any]:
        """What a node's tailscaled says of itself and its peers."""
        found: dict[str, Any] = json.loads(await self.tailscale(name, "status", "--json", *words))
        return found

    async def reaches(self, name: str, address: str) -> bool:
        """Whether a packet from a node comes back from an address, directly or over the relay.

        Without the last word `tailscale ping` also fails when the answer came over the relay, as the first one after
        a login or a change of address may.
        """
        return "pong" in await self.tailscale(name, "ping", "--c=1", "--until-direct=false", address)

    async def answers(self, name: str) -> None:
        """Wait until a node that was started takes questions."""

        async def there() -> bool:
            return self.socket_of(name).exists()

        await until(there, bool, f"tailscaled of {name} has its socket")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> float:
        """End a process; the time at which the signal was sent, by the monotonic clock."""
        process = self._processes.pop(name)
        at = time.monotonic()
        process.send_signal(number)
        process.wait(10)
        if number == signal.SIGKILL:
            self.socket_of(name).unlink(missing_ok=True)
        return at

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process that goes on: SIGSTOP makes it one that does not answer."""
        self._processes[name].send_signal(number)

    async def api(self, method: str, path: str, body: object = None) -> Any:
        """A call of the admin API."""
        request = urllib.request.Request(
            f"{self.api_url}/api/v2/{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {API_TOKEN}"},
        )

        def call() -> Any:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return json.loads(reply.read() or b"null")

        return await asyncio.to_thread(call)

    def _start(self, name: str, words: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            # `ip netns exec` replaces itself, so the pid is the program's own.
            self._processes[name] = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TS_NO_LOGS_NO_SUPPORT": "1"},
            )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From a loopback port of the host to the admin API in the namespace."""
        try:
            inner = await asyncio.open_connection(sock=await asyncio.to_thread(self._connect))
        except OSError:
            writer.close()
            return

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    def _connect(self) -> socket.socket:
        """A socket belongs to the namespace in which its thread was when it made it."""
        found: list[socket.socket | OSError] = []

        def body() -> None:
            try:
                with open(f"/run/netns/{self.namespace}", "rb") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                found.append(socket.create_connection((ADDRESS, API_PORT), timeout=5))
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if isinstance(found[0], OSError):
            raise found[0]
        found[0].setblocking(False)
        return found[0]


@contextlib.asynccontextmanager
async def tailnet_lab(folder: Path) -> AsyncIterator[TailnetLab]:
    """A running lab with nobody in it."""
    lab = TailnetLab(folder, *await programs())
    try:
        await lab.up()
        yield lab
    finally:
        await lab.down()
