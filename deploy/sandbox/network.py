"""One sandbox's network: a bridge in a network namespace of its own, and one more namespace for each machine.

Nothing is added to the host's own namespace: no interface, no route, no firewall rule, no name server. The bridge's
namespace is where the sandbox's servers listen (10.77.0.1); machines have 10.77.0.10 and up.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.sandbox import nat, proc
from deploy.sandbox.iproute import batch, ip
from deploy.sandbox.presence import NETNS

GATEWAY = "10.77.0.1"
"""Where the sandbox's servers listen, and the machines' default route (which leads nowhere)."""

METADATA = "169.254.169.254"
"""Where clouds serve a machine's metadata; machines reach it over their default route."""

_PREFIX = "10.77.0"
_FIRST, _LAST = 10, 254
_CLONE_NEWNET = 0x40000000
_NFT_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Port:
    """One machine's place on the bridge.

    Attributes:
        number: last octet of the address; unique among the machines that run.
        address: IPv4 address of the machine.
        namespace: path of the machine's network namespace; its interface there is `host0`, a pod's `eth0`.
        link: the bridge's side of the cable.
        router: name of the namespace with `host0` of a pod, which is behind NAT there; "" for other machines.
        tap: whether `link` is a TAP device, for a machine with a kernel of its own, whose namespace is the bridge's.
    """

    number: int
    address: str
    namespace: Path
    link: str
    router: str = ""
    tap: bool = False


def cut(link: str) -> str:
    """The rules for nft(8) that let nothing but ssh from the gateway through a cable, in either direction."""
    return f"""\
table bridge {link} {{
    chain from {{
        type filter hook prerouting priority 0;
        iifname "{link}" ip daddr {GATEWAY} tcp sport 22 accept
        iifname "{link}" arp daddr ip {GATEWAY} accept
        iifname "{link}" drop
    }}
    chain to {{
        type filter hook postrouting priority 0;
        oifname "{link}" ip saddr {GATEWAY} tcp dport 22 accept
        oifname "{link}" arp saddr ip {GATEWAY} accept
        oifname "{link}" drop
    }}
}}
"""


class Network:
    """The bridge of one sandbox and the machines' ports on it."""

    def __init__(self, sandbox_id: str) -> None:
        self._name = f"meshd-{sandbox_id}"
        self._used: set[int] = set()
        self._next = _FIRST

    @property
    def namespace(self) -> Path:
        """Path of the namespace that holds the bridge."""
        return NETNS / self._name

    async def up(self) -> None:
        """Create the namespace and the bridge.

        Raises:
            CommandError: the kernel refused, for instance because it is there already.
        """
        await ip(["netns", "add", self._name])
        await batch(
            self._name,
            [
                "link set lo up",
                "link add br0 type bridge",
                f"addr add {GATEWAY}/24 dev br0",
                f"addr add {METADATA}/32 dev lo",
                "link set br0 up",
            ],
        )

    async def attach(self, public: Mapping[int, int] | None = None, *, hard_nat: bool = False) -> Port:
        """Plug in one machine: a namespace with an interface that is up, addressed and routed.

        Args:
            public: of a pod, the TCP ports that reach it from outside, public to private; None: not a pod.
            hard_nat: whether the pod's NAT takes another port for each destination.

        Raises:
            RuntimeError: all addresses are taken.
        """
        number = self._take()
        name = f"{self._name}-{number}"
        port = Port(number, f"{_PREFIX}.{number}", NETNS / name, f"m{number}")
        if public is not None:
            port = replace(port, namespace=NETNS / f"{name}-pod", router=name)
        try:
            await ip(["netns", "add", name])
            await batch(
                self._name,
                [
                    f"link add {port.link} type veth peer name host0 netns {name}",
                    f"link set {port.link} master br0 up",
                ],
            )
            await batch(
                name,
                [
                    "link set lo up",
                    f"addr add {port.address}/24 dev host0",
                    "link set host0 up",
                    f"route add default via {GATEWAY}",
                ],
            )
            if public is not None:
                await nat.put_behind(name, port.namespace.name, public, hard=hard_nat)
        except BaseException:
            await self.detach(port)
            raise
        return port

    async def attach_tap(self) -> Port:
        """Plug in one machine that has a kernel, and hence interfaces, of its own: a TAP device on the bridge.

        Raises:
            RuntimeError: all addresses are taken.
        """
        number = self._take()
        port = Port(number, f"{_PREFIX}.{number}", self.namespace, f"m{number}", tap=True)
        try:
            lines = [f"tuntap add {port.link} mode tap", f"link set {port.link} master br0 up"]
            await batch(self._name, lines)
        except BaseException:
            await self.detach(port)
            raise
        return port

    async def detach(self, port: Port) -> None:
        """Unplug a machine and free its address; nothing happens when it is gone already."""
        if port.tap:
            await self.set_link(port, up=True)
            await ip(["-n", self._name, "link", "del", port.link], check=False)
            self._used.discard(port.number)
            return
        names = [name for name in (port.namespace.name, port.router) if name and (NETNS / name).exists()]
        if names:
            # The namespace may outlive its name for a moment; the cable must not.
            await ip(["-n", self._name, "link", "del", port.link], check=False)
        for name in names:
            await ip(["netns", "del", name], check=False)
        self._used.discard(port.number)

    async def set_link(self, port: Port, *, up: bool) -> None:
        """Cut a machine's cable without either end being told, or mend it.

        A machine with a kernel of its own stays reachable by ssh from the gateway: it has no other console.
        """
        if port.tap:
            rules = "" if up else cut(port.link)
            # One transaction: to add the table first makes that it can be deleted, whether it was there or not.
            text = f"table bridge {port.link}\ndelete table bridge {port.link}\n{rules}"
            await proc.run(self.enter(["nft", "-f", "-"]), timeout_s=_NFT_TIMEOUT_S, stdin=text.encode())
            return
        await ip(["-n", self._name, "link", "set", port.link, "up" if up else "down"])

    async def down(self) -> None:
        """Remove every namespace of this sandbox, whoever made it."""
        for entry in [*sorted(NETNS.glob(f"{self._name}-*")), self.namespace]:
            if entry.exists():
                await ip(["netns", "del", entry.name], check=False)
        self._used.clear()

    def enter(self, argv: Sequence[str | Path]) -> list[str]:
        """The same command, run in the bridge's namespace."""
        return ["nsenter", f"--net={self.namespace}", "--", *(str(word) for word in argv)]

    def listen(self, port: int, address: str = GATEWAY) -> socket.socket:
        """A TCP socket that listens inside the sandbox while its owner stays outside.

        Args:
            port: TCP port; 0 takes a free one.
            address: the gateway's, or the metadata service's.
        """
        made = self.open_socket()
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address, port))
            made.listen(128)
        except OSError:
            made.close()
            raise
        return made

    async def connect(
        self, host: str, port: int, timeout_s: float = 10.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TCP connection from the bridge's namespace, for instance to a machine.

        Raises:
            OSError: nothing answered there (TimeoutError after `timeout_s` seconds).
        """
        made = self.open_socket()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(made, (host, port))
                return await asyncio.open_connection(sock=made)
        except BaseException:
            made.close()
            raise

    def open_socket(self) -> socket.socket:
        """An unbound TCP socket that belongs to the bridge's namespace (a socket keeps the one it was made in)."""
        made: list[socket.socket | OSError] = []

        def make() -> None:
            try:
                with self.namespace.open("rb") as handle:
                    libc = ctypes.CDLL(None, use_errno=True)
                    if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
                        number = ctypes.get_errno()
                        raise OSError(number, os.strerror(number), str(self.namespace))
                made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            except OSError as error:
                made.append(error)

        # A namespace belongs to a thread: this one enters it and ends, the others never notice.
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def _take(self) -> int:
        # Round robin: an address is used again as late as possible, as clouds do too.
        for step in range(_LAST - _FIRST + 1):
            number = _FIRST + (self._next - _FIRST + step) % (_LAST - _FIRST + 1)
            if number not in self._used:
                self._used.add(number)
                self._next = number + 1
                return number
        raise RuntimeError(f"all {_LAST - _FIRST + 1} addresses of this sandbox are taken")
