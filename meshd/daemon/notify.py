"""Telling systemd how the service is: readiness, a status line, the watchdog. Nothing happens outside of systemd.

Protocol: sd_notify(3), one datagram each time to `$NOTIFY_SOCKET`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

STATUS_MAX: Final = 400


class Notifier:
    """Speaks to the service manager. Cheap, never blocks, never raises: a manager that does not listen harms nobody.

    Args:
        env: variables to look in; the process's own.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        address = env.get("NOTIFY_SOCKET", "")
        self._address = ("\0" + address[1:]) if address.startswith("@") else address

    def ready(self, status: str = "") -> None:
        """The service does its work; also ends a reload."""
        self._send("READY=1", status)

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("", text)

    def watchdog(self) -> None:
        """The service makes progress."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """The settings are being read; `ready()` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str = "") -> None:
        """The service is going down."""
        self._send("STOPPING=1", status)

    def _send(self, message: str, status: str = "") -> None:
        line = " ".join(status.split())[:STATUS_MAX]
        text = "\n".join(part for part in (message, f"STATUS={line}" if line else "") if part)
        if not self._address or not text:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.setblocking(False)
            out.sendto(text.encode(), self._address)
