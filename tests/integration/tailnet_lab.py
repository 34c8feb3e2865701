"""A real tailnet in one network namespace: the sandbox's control server and several tailscaled, each a process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from deploy.node.meshd_node.login import online
from deploy.sandbox import gotools
from deploy.sandbox.images import ensure_base
from deploy.sandbox.presence import shared_folders
from meshd.errors import TailnetError
from meshd.runtime.run import Result, run
from meshd.tailnet.localapi import BASE_URL, LocalApi, PingKind, Pong
from tests.waiting import until

ADDRESS = "10.78.0.1"
CONTROL_PORT = 8080
API_PORT = 8099
API_TOKEN = "tskey-api-test"
CLONE_NEWNET = 0x40000000

PORT_FIRST = 20001
"""WireGuard's port of the first tailscaled: below those that the kernel hands out to whoever asks for any."""

TAILSCALE_S = 60.0
"""For one command of `tailscale`, which takes a second at most."""

PONG_S = 2.0
"""For the answer to one ping: one that was sent before there was a path is lost."""


async def programs() -> tuple[Path, Path]:
    """The control server and tailscaled (which is tailscale too, by name)."""
    control, tailscale = await gotools.ensure_control(), await gotools.ensure_tailscale()
    if control.is_dir():
        control = next(path for path in sorted(control.rglob("control")) if path.is_file())
    return control, tailscale / "usr/sbin/tailscaled"


class TailnetLab:
    """All of it. Nothing of the host's own network is touched, and `down` leaves nothing behind."""

    def __init__(self, folder: Path, control: Path, tailscaled: Path) -> None:
        self.namespace = f"tg-{secrets.token_hex(4)}"
        self.folder = folder
        self._control = control
        self._bin = folder / "bin"
        self._bin.mkdir()
        for name in ("tailscale", "tailscaled"):
            (self._bin / name).symlink_to(tailscaled)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, int] = {}
        self._relays: list[asyncio.Server] = []
        self._relayed: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
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
            subprocess.run(words, check=True, timeout=30)
        resolv = Path("/etc/netns") / self.namespace
        resolv.mkdir(parents=True)
        (resolv / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        self._start(
            "control",
            [str(self._control), "-ip", ADDRESS, "-admin", f"{ADDRESS}:{API_PORT}", "-api-key", API_TOKEN],
        )
        self._relays.append(await asyncio.start_server(partial(self._serve, API_PORT, 0.0), "127.0.0.1", 0))
        self.api_url = f"http://127.0.0.1:{self._relays[0].sockets[0].getsockname()[1]}"
        create = {"reusable": True, "preauthorized": True, "tags": ["tag:gpu"]}

        async def minted() -> Any:
            try:
                return await self.api("POST", "tailnet/-/keys", {"capabilities": {"devices": {"create": create}}})
            except OSError as error:  # it is just being started
                return error

        made = await until(minted, lambda seen: isinstance(seen, dict), "the control server mints an auth key")
        self.auth_key = made["key"]

    async def down(self) -> None:
        for process in self._processes.values():
            process.kill()
        try:
            for process in self._processes.values():
                process.wait(30)
            for relay in self._relays:
                relay.close()
            for writers in self._relayed.values():
                for writer in writers:
                    writer.transport.abort()
            await asyncio.gather(*self._relayed)
        finally:
            subprocess.run(["ip", "netns", "del", self.namespace], check=False, timeout=30)
            shutil.rmtree(f"/etc/netns/{self.namespace}", ignore_errors=True)

    def socket_of(self, name: str) -> Path:
        return self.folder / f"{name}.sock"

    def start(self, name: str, tun: str = "userspace-networking") -> None:
        """Start a tailscaled; with the state of an earlier one of that name it joins by itself.

        Args:
            name: the node's.
            tun: the TUN device's name; a namespace has room for one.
        """
        port = self._ports.setdefault(name, PORT_FIRST + len(self._ports))
        words = [str(self._bin / "tailscaled"), f"--tun={tun}", f"--statedir={self.folder / name}"]
        self._start(name, [*words, f"--socket={self.socket_of(name)}", f"--port={port}"])

    async def join(
        self,
        name: str,
        login_server: str = f"http://{ADDRESS}:{CONTROL_PORT}",
        tun: str = "userspace-networking",
    ) -> None:
        """Start a tailscaled and log it in; it is online by its own word then. For `tun` see `start`."""
        self.start(name, tun)
        await self.answers(name)
        await self.tailscale(
            name,
            "up",
            f"--login-server={login_server}",
            f"--auth-key={self.auth_key}",
            f"--hostname={name}",
            "--accept-dns=false",
            "--timeout=30s",
        )
        await self.online(name)

    async def block_udp(self, *, blocked: bool) -> None:
        """Drop what tailscaleds send each other by UDP, without a word, or no longer: only the relay is left.

        STUN works, as behind a NAT. It takes the nft of a sandbox image, since the host may have none.
        """
        image = await ensure_base("trixie")
        ports = f"{PORT_FIRST}-{PORT_FIRST + 99}"
        rule = f"type filter hook input priority 0\nudp sport {ports} udp dport {ports} drop\n"
        text = f"table inet relayed {{\nchain input {{\n{rule}}}\n}}\n" if blocked else "delete table inet relayed\n"
        argv = ["ip", "netns", "exec", self.namespace, "chroot", str(image), "nft", "-f", "-"]
        await run(argv, timeout_s=30.0, stdin=text.encode())

    async def late_control(self, late_s: float) -> str:
        """A login server that is the control server, except that what it says comes later."""
        listening = await asyncio.to_thread(self._inside, lambda: socket.create_server((ADDRESS, 0)))
        self._relays.append(await asyncio.start_server(partial(self._serve, CONTROL_PORT, late_s), sock=listening))
        return f"http://{ADDRESS}:{listening.getsockname()[1]}"

    async def tailscale(self, name: str, *words: str) -> str:
        """Run `tailscale` against a node's tailscaled; its stdout.

        Raises:
            AssertionError: it ended with another code than 0; with all that it said.
        """
        done = await self._run(name, *words)
        assert done.returncode == 0, _described(name, words[0], done)
        return done.stdout

    async def up_refused(self, name: str, *words: str) -> None:
        """`tailscale up` on a node that runs, with an auth key that control refuses.

        It ends with 0 all the same: it waits for Running alone, which is told before control has answered. Where that
        comes the other way round it ends with control's refusal.
        """
        done = await self._run(name, "up", *words)
        assert done.returncode == 0 or "invalid key" in done.stderr, _described(name, "up", done)

    async def netcat(self, name: str, peer: str, port: int, sent: bytes) -> str:
        """Connect to a peer's port from a node, and send something; all that came back, "" without a connection."""
        program = [str(self._bin / "tailscale"), f"--socket={self.socket_of(name)}", "nc", peer, str(port)]
        argv = ["ip", "netns", "exec", self.namespace, *program]
        return (await run(argv, timeout_s=TAILSCALE_S, check=False, stdin=sent)).stdout

    async def listening(self) -> socket.socket:
        """A socket on the loopback of the namespace, on which a test can serve."""
        return await asyncio.to_thread(self._inside, lambda: socket.create_server(("127.0.0.1", 0)))

    async def _run(self, name: str, *words: str) -> Result:
        program = [str(self._bin / "tailscale"), f"--socket={self.socket_of(name)}", *words]
        return await run(["ip", "netns", "exec", self.namespace, *program], timeout_s=TAILSCALE_S, check=False)

    async def status(self, name: str, *, peers: bool = True) -> dict[str, Any]:
        """What a node's tailscaled says of itself and its peers, as `tailscale status --json` shows it.

        Raises:
            aiohttp.ClientError: it does not run.
        """
        connector = aiohttp.UnixConnector(path=str(self.socket_of(name)))
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(TAILSCALE_S)) as session,
            session.get(f"{BASE_URL}/status", params={"peers": str(peers).lower()}) as reply,
        ):
            reply.raise_for_status()
            found: dict[str, Any] = await reply.json()
        return found

    async def online(self, name: str) -> None:
        """Wait until a node is online by its own word."""
        await until(partial(self.status, name, peers=False), online, f"{name} is online")

    async def pong(self, name: str, address: str, kind: PingKind = "disco") -> Pong:
        """Wait until a packet from a node comes back from an address, directly or over the relay; how it came."""
        api = LocalApi(self.socket_of(name), timeout_s=PONG_S)

        async def ping() -> Pong | TailnetError:
            try:
                return await api.ping(address, kind)
            except TailnetError as error:  # also: no answer in time
                return error

        try:
            found = await until(ping, lambda seen: isinstance(seen, Pong), f"{name} reaches {address}")
        finally:
            await api.aclose()
        assert isinstance(found, Pong)
        return found

    async def answers(self, name: str) -> None:
        """Wait until a node that was started takes questions."""

        async def connects() -> OSError | None:
            try:
                _, writer = await asyncio.open_unix_connection(self.socket_of(name))
            except OSError as error:
                return error
            writer.close()
            await writer.wait_closed()
            return None

        await until(connects, lambda fault: fault is None, f"tailscaled of {name} takes connections")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> float:
        """End a process; the time at which the signal was sent, by the monotonic clock."""
        process = self._processes.pop(name)
        log = self.folder / f"{name}.log"
        assert process.poll() is None, f"{name} had ended with {process.returncode}: {log.read_text()[-2000:]}"
        at = time.monotonic()
        process.send_signal(number)
        process.wait(30)
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
        assert name not in self._processes, f"{name} runs already"
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

    async def _serve(
        self, port: int, late_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry a connection to a port in the namespace, whose words come later, until `down` at the latest."""
        task = asyncio.current_task()
        assert task is not None
        writers = self._relayed[task] = [writer]
        try:
            connect = partial(socket.create_connection, (ADDRESS, port), 10)
            inner, inner_writer = await asyncio.open_connection(sock=await asyncio.to_thread(self._inside, connect))
            writers.append(inner_writer)
            await asyncio.gather(_pump(reader, inner_writer), _pump(inner, writer, late_s))
        except OSError:  # it does not listen yet, or was killed: the caller sees an end without an answer
            pass
        finally:
            for one in writers:
                one.close()
            del self._relayed[task]

    def _inside(self, make: Callable[[], socket.socket]) -> socket.socket:
        """A socket belongs to the namespace in which its thread was when it made it."""
        found: list[socket.socket | OSError] = []

        def body() -> None:
            try:
                with open(f"/run/netns/{self.namespace}", "rb") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                found.append(make())
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if isinstance(found[0], OSError):
            raise found[0]
        found[0].setblocking(False)
        return found[0]


def _described(name: str, word: str, done: Result) -> str:
    return f"tailscale {word} on {name} ended with {done.returncode}: {done.stderr}{done.stdout}"


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, late_s: float = 0.0) -> None:
    """Pass on what comes, each part so much later, and then the end."""
    loop, parts = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def say() -> None:
        with contextlib.suppress(OSError):
            while (part := await parts.get())[1]:
                await asyncio.sleep(max(part[0] - loop.time(), 0))
                sink.write(part[1])
                await sink.drain()

    saying = asyncio.create_task(say())
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            parts.put_nowait((loop.time() + late_s, data))
    parts.put_nowait((0.0, b""))
    await saying
    sink.close()


@contextlib.asynccontextmanager
async def tailnet_lab(folder: Path) -> AsyncIterator[TailnetLab]:
    """A running lab with nobody in it."""
    lab = TailnetLab(folder, *await programs())
    with shared_folders():
        try:
            await lab.up()
            yield lab
        finally:
            await lab.down()
