"""Wakes hosts: with a magic packet, or with a command that their owner named."""

from __future__ import annotations

import asyncio
import re
import socket

import structlog

from meshd.errors import MeshdError
from meshd.model.host import Host
from meshd.runtime.run import Runner

log = structlog.get_logger(__name__)

COMMAND_TIMEOUT_S = 30.0
PORT = 9
BROADCAST = "255.255.255.255"
MAC = re.compile(r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$")


def magic_packet(mac: str) -> bytes:
    """Six times 0xff, then the address sixteen times (AMD, "Magic Packet Technology", 1995)."""
    return b"\xff" * 6 + bytes.fromhex(mac.replace(":", "")) * 16


class Waker:
    """Wakes hosts. A failure is logged: the host's absence shows it.

    Args:
        run: runs the command, as the daemon's user and without a shell.
        to: where magic packets go.
    """

    def __init__(self, run: Runner, to: tuple[str, int] = (BROADCAST, PORT)) -> None:
        self._run = run
        self._to = to

    async def __call__(self, host: Host) -> None:
        """Wake a host."""
        try:
            if host.wake_mac:
                await asyncio.to_thread(self._send, magic_packet(host.wake_mac))
            if host.wake_command:
                await self._run(host.wake_command, timeout_s=COMMAND_TIMEOUT_S)
            log.info("host_woken", host=host.name)
        except (OSError, MeshdError) as error:
            log.warning("host_not_woken", host=host.name, reason=str(error))

    def _send(self, packet: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            link.sendto(packet, self._to)
