"""Whether MLflow's server on the head answers, and listens on the tailnet alone: a check of `meshctl doctor`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import aiohttp

from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.config import MlflowSettings
from meshd.daemon.reporting import Check, Reporter, fail, ok, warn

ANSWER_TIMEOUT_S = 5.0
VERSION_MAX_BYTES = 64
VERSION = re.compile(r"\d+\.\d+(\.\w+)*")
LISTENS = "0A"
SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
CURE = "see `systemctl status meshd-mlflow` and `journalctl -u meshd-mlflow`; deploy/services/mlflow/install sets it up"


def listening(table: str, port: int) -> frozenset[str]:
    """The addresses on which a port is open.

    Args:
        table: the text of /proc/net/tcp or tcp6 (proc(5)): addresses in hexadecimal, words of 32 bits in the machine's
            order, which is little-endian on all that meshd runs on.
        port: a TCP port.
    """
    found: set[str] = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        address, _, number = fields[1].partition(":")
        if fields[3] == LISTENS and int(number, 16) == port:
            data = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
            found.add(str(IPv4Address(data) if len(data) == 4 else IPv6Address(data)))
    return frozenset(found)


def elsewhere(addresses: Iterable[str], head: str) -> list[str]:
    """The addresses on which others than the tailnet reach a port; loopback counts as none."""
    loopback = {"127.0.0.1", "::1", f"::ffff:{head}"}
    return sorted(address for address in addresses if address != head and address not in loopback)


class MlflowReporter(Reporter):
    """Reports nothing unless [mlflow] is enabled.

    Args:
        settings: as they are now.
        head: the head's address on the tailnet; "" while it has none.
        sockets: the kernel's tables of TCP sockets.
    """

    def __init__(
        self, settings: Callable[[], MlflowSettings], head: Callable[[], str], sockets: Iterable[Path] = SOCKETS
    ) -> None:
        self._settings = settings
        self._head = head
        self._sockets = tuple(sockets)

    def checks(self) -> Iterable[Check]:
        """The server's check."""
        if self._settings().enabled:
            yield Check(CheckName.MLFLOW, self.check)

    async def check(self) -> CheckRow:
        """Ask the server for its version, and the kernel where its port is open."""
        settings, head = self._settings(), self._head()
        if not head:
            text = "the head has no address on the tailnet, so no job has MLFLOW_TRACKING_URI"
            return warn(CheckName.MLFLOW, ProblemCode.CHECK_NOT_POSSIBLE, text, "check `tailscale status`")
        uri = settings.uri(head)
        version, fault = await ask_version(uri)
        if fault:
            text = f"no MLflow at {uri}, where every job expects it: {fault}"
            return fail(CheckName.MLFLOW, ProblemCode.MLFLOW_UNREACHABLE, text, CURE)
        tables = [await asyncio.to_thread(_text, path) for path in self._sockets]
        if open_at := elsewhere({one for table in tables for one in listening(table, settings.port)}, head):
            text = f"port {settings.port} is open on {', '.join(open_at)} too: whoever reaches it may write"
            cure = "let it listen on the tailnet only: run deploy/services/mlflow/install again, which sets `--host`"
            return fail(CheckName.MLFLOW, ProblemCode.MLFLOW_EXPOSED, text, cure)
        return ok(CheckName.MLFLOW, f"{version} answers at {uri}, on the tailnet only")


async def ask_version(uri: str) -> tuple[str, str]:
    """The version that the server at this address tells, and what is wrong with its answer; one of them is ""."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)) as session,
            session.get(f"{uri}/version", allow_redirects=False) as answer,
        ):
            text = (await answer.content.read(VERSION_MAX_BYTES)).decode("ascii", "replace").strip()
            if answer.status == 200 and VERSION.fullmatch(text):
                return text, ""
            return "", f"another program answers there (HTTP {answer.status})"
    except TimeoutError:
        return "", f"no answer within {ANSWER_TIMEOUT_S:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return "", str(error) or type(error).__name__


def _text(path: Path) -> str:
    """A table of sockets; empty where the kernel has no such family."""
    return path.read_text("ascii") if path.exists() else ""
