"""tailscaled's LocalAPI: HTTP over its unix socket. Every local user may read; changing needs root or the operator.

Facts: tailscale 1.102 `ipn/localapi`, checked against a running tailscaled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import aiohttp

from meshd.errors import TailnetError
from meshd.model.observed import TailnetPeer
from meshd.tailnet.deltas import Delta, parse_delta
from meshd.tailnet.fields import Json, text
from meshd.tailnet.status import Identity, TailnetTable, load_object, parse_identity, parse_status, parse_whois

BASE_URL: Final = "http://local-tailscaled.sock/localapi/v0"
BUS_MASK: Final = 2 | 128 | 4096 | 16384 | 32768
"""InitialState, InitialHealth, PeerChanges, InitialStatus, PeerPatches."""
ANSWER_MAX_B: Final = 64 * 1024 * 1024
"""10,000 peers are about 15 MB."""

PRIME_S: Final = 0.5
"""For each of the two answers that `prime_session` waits for."""

PingKind = Literal["disco", "TSMP", "ICMP"]


@dataclass(frozen=True, slots=True)
class Pong:
    """A peer's answer.

    Attributes:
        path: "direct ADDR", "peer-relay ADDR", "relay CODE"; "" for kinds that do not have it (TSMP, ICMP).
    """

    ip: str
    hostname: str
    latency_s: float
    path: str

    @property
    def direct(self) -> bool:
        """No relay in between. Only disco pings have it."""
        return self.path.startswith("direct ")


class LocalApi:
    """A client of one tailscaled. Every method raises TailnetError, with what to do, and nothing else.

    Args:
        socket: path of the unix socket.
        timeout_s: deadline of each call; the bus has one for connecting only.
    """

    def __init__(self, socket: Path, *, timeout_s: float = 5.0) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._open: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Close all connections; a later call opens new ones."""
        session, self._open = self._open, None
        if session is not None:
            await session.close()

    async def status(self) -> TailnetTable:
        """The tailnet as tailscaled knows it now."""
        return parse_status(await self._call("GET", "status"))

    async def whois(self, address: str) -> TailnetPeer:
        """The device behind `IP` or `IP:port`."""
        return parse_whois(await self._call("GET", "whois", {"addr": address}))

    async def identity(self, address: str) -> Identity:
        """Who is behind `IP` or `IP:port`."""
        return parse_identity(await self._call("GET", "whois", {"addr": address}))

    async def ping(self, ip: str, kind: PingKind = "disco", *, timeout_s: float | None = None) -> Pong:
        """Ask a peer for a sign of life; a disco ping also wakes the path and returns it.

        Every local user may: tailscaled asks for no right here.

        Args:
            ip: the peer's.
            kind: what is sent.
            timeout_s: for the answer; that of all calls when left out.

        Raises:
            TailnetError: no answer within the deadline, or no such peer.
        """
        words = {"ip": ip, "type": kind}
        answer = load_object(await self._call("POST", "ping", words, timeout_s), "tailscaled's ping")
        if fault := text(answer, "Err"):
            raise TailnetError(f"ping {ip}: {fault}")
        latency = answer.get("LatencySeconds")
        return Pong(
            ip=text(answer, "IP"),
            hostname=text(answer, "NodeName"),
            latency_s=float(latency) if isinstance(latency, int | float) else 0.0,
            path=_pong_path(answer),
        )

    async def prime_session(self, ip: str) -> None:
        """Wake the path to a peer, then send it one packet through WireGuard, which begins a session if there is none.

        The order matters: a handshake that is sent before there is a path is lost, and is not repeated for 5 s.

        Raises:
            TailnetError: the peer did not answer, 1 s at most.
        """
        await self.ping(ip, "disco", timeout_s=PRIME_S)
        await self.ping(ip, "TSMP", timeout_s=PRIME_S)

    async def prefs(self) -> Json:
        """The preferences as tailscaled shows them (ControlURL, Hostname, CorpDNS, OperatorUser); it blanks keys."""
        return load_object(await self._call("GET", "prefs"), "tailscaled's prefs")

    async def watch(self) -> AsyncGenerator[Delta, None]:
        """Follow the bus: the first message has the whole status, then each change as tailscaled learns of it.

        Ends when tailscaled closes the stream, which it also does to a reader that lags: watch again.

        Raises:
            TailnetError: cannot connect, denied, or the connection broke.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=self._timeout_s, sock_read=None)
        try:
            async with (
                asyncio.timeout(self._timeout_s) as connecting,
                self._session().get(f"{BASE_URL}/watch-ipn-bus?mask={BUS_MASK}", timeout=timeout) as reply,
            ):
                await _check(reply, "watch-ipn-bus")
                connecting.reschedule(None)
                async with aclosing(_lines(reply.content)) as lines:
                    async for line in lines:
                        yield parse_delta(line)
        except TimeoutError as error:
            raise self._silent("watch-ipn-bus", self._timeout_s) from error
        except aiohttp.ClientError as error:
            raise self._broken("watch-ipn-bus", error) from error

    async def _call(
        self, method: str, path: str, params: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> bytes:
        within_s = self._timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=within_s)
        if not self._socket.exists():
            raise self._away("No such file or directory")
        try:
            async with self._session().request(method, f"{BASE_URL}/{path}", params=params, timeout=timeout) as reply:
                await _check(reply, path)
                return await _body(reply.content, path)
        except TimeoutError as error:
            raise self._silent(path, within_s) from error
        except aiohttp.ClientError as error:
            raise self._broken(path, error) from error

    def _session(self) -> aiohttp.ClientSession:
        if self._open is None or self._open.closed:
            self._open = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(self._socket)))
        return self._open

    def _silent(self, path: str, within_s: float) -> TailnetError:
        return TailnetError(f"tailscaled did not answer {path} within {within_s:g} s")

    def _away(self, reason: str) -> TailnetError:
        return TailnetError(f"tailscaled does not answer on {self._socket} ({reason}): systemctl start tailscaled")

    def _broken(self, path: str, error: aiohttp.ClientError) -> TailnetError:
        if isinstance(error, aiohttp.ClientConnectorError):
            return self._away(error.os_error.strerror or type(error.os_error).__name__)
        return TailnetError(f"the connection to tailscaled broke during {path}: {type(error).__name__}")


async def _check(reply: aiohttp.ClientResponse, path: str) -> None:
    if reply.status == 200:
        return
    said = (await reply.content.read(400)).decode("utf-8", "replace").strip()
    if reply.status == 403:
        raise TailnetError(f"tailscaled denies {path} to this user ({said}): as root, tailscale set --operator=USER")
    raise TailnetError(f"tailscaled answers {path} with {reply.status}: {said}")


async def _body(stream: aiohttp.StreamReader, path: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in stream.iter_any():
        parts.append(part)
        size += len(part)
        if size > ANSWER_MAX_B:
            raise TailnetError(f"tailscaled's answer to {path} is above {ANSWER_MAX_B} bytes")
    return b"".join(parts)


async def _lines(stream: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Lines of any length up to the cap: a first message is far above StreamReader.readline's limit."""
    pending = bytearray()
    async for part in stream.iter_any():
        scanned = len(pending)
        pending += part
        while (end := pending.find(b"\n", scanned)) >= 0:
            line = bytes(pending[:end]).strip()
            del pending[: end + 1]
            scanned = 0
            if line:
                yield line
        if len(pending) > ANSWER_MAX_B:
            raise TailnetError(f"a message of tailscaled's bus is above {ANSWER_MAX_B} bytes")


def _pong_path(answer: Json) -> str:
    if endpoint := text(answer, "Endpoint"):
        return f"direct {endpoint}"
    if relay := text(answer, "PeerRelay"):
        return f"peer-relay {relay}"
    code = text(answer, "DERPRegionCode") or str(answer.get("DERPRegionID") or "")
    return f"relay {code}" if code else ""
