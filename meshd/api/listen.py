"""Where meshd listens: a socket file, taken over from a dead meshd and never from one that runs; and a TCP port."""

from __future__ import annotations

import socket
import stat
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from meshd.errors import MeshdError

_PROBE_TIMEOUT_S = 1.0


class SocketError(MeshdError):
    """The socket's path, or the address, cannot be used."""


async def listen_tcp(runner: web.AppRunner, host: str, port: int, backlog: int) -> int:
    """Listen at a TCP port; returns the port, which the system chooses for port 0.

    Raises:
        SocketError: the address cannot be listened on. The runner is cleaned up.
    """
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=backlog).start()
    except OSError as error:
        await runner.cleanup()
        raise SocketError(f"{host} port {port} cannot be listened on: {error.strerror}") from error
    bound: int = runner.addresses[0][1]
    return bound


def clear_stale(path: Path) -> None:
    """Make way for a new socket at `path`.

    Raises:
        SocketError: somebody listens there, or it is not a socket, or its directory cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise SocketError(f"{path} cannot be used: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise SocketError(f"{path} exists and is not a socket: move it away, or set cluster.socket to another path")
    if _somebody_listens(path):
        raise SocketError(f"another meshd listens on {path}: `systemctl status meshd`")
    with suppress(FileNotFoundError):
        path.unlink()


def _somebody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the socket file, None when there is none: shows whether it is still ours."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
