"""HTTP to the admin API: credentials, deadlines, and which faults are worth another try."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from pydantic import SecretStr

from meshd.errors import TailnetError, TailnetRefused
from meshd.redaction import register_secret
from meshd.runtime import strictjson
from meshd.runtime.backoff import backoff_s
from meshd.runtime.clock import Clock
from meshd.tailnet.fields import Json, table, text

READ_TRIES: Final = 4
RETRY_FIRST_S: Final = 0.5
RETRY_AFTER_MAX_S: Final = 30.0
TOKEN_MARGIN_S: Final = 60.0
ANSWER_MAX_B: Final = 64 * 1024 * 1024
"""10,000 devices are about 10 MB."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """An API access token: it ends after at most 90 days."""

    token: SecretStr


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """An OAuth client: it does not end; its tokens last an hour and are fetched as needed."""

    client_id: str
    secret: SecretStr


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: Json
    retry_after_s: float | None = None


class AdminHttp:
    """Calls of the admin API. Every method raises TailnetError, with what to do, and nothing else.

    Args:
        base_url: e.g. https://api.tailscale.com, without a path.
        credential: the token or client.
        clock: for waits between tries and the token's age.
        timeout_s: deadline of one call, each try of it.
    """

    def __init__(
        self, base_url: str, credential: ApiToken | OAuthClient, clock: Clock, *, timeout_s: float = 20.0
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._credential = credential
        self._clock = clock
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._timeout_s = timeout_s
        self._open: aiohttp.ClientSession | None = None
        self._token: SecretStr | None = None
        self._token_until_s = 0.0
        self._token_lock = asyncio.Lock()

    async def aclose(self) -> None:
        """Close all connections; a later call opens new ones."""
        session, self._open = self._open, None
        if session is not None:
            await session.close()

    async def read(self, path: str, *, scope: str) -> Json | None:
        """GET; None when the server says 404. Tried again on 429, 5xx and a broken connection.

        Args:
            path: from /api on.
            scope: what the credential must be allowed, for the message when it is not.
        """
        for tries in range(1, READ_TRIES + 1):
            wait_s = backoff_s(tries, RETRY_FIRST_S, RETRY_AFTER_MAX_S)
            try:
                reply = await self._authorized("GET", path, None)
            except TailnetError:
                if tries == READ_TRIES:
                    raise
            else:
                if reply.status == 404:
                    return None
                if not _worth_another_try(reply.status) or tries == READ_TRIES:
                    return _accepted(reply, "GET", path, scope)
                wait_s = min(reply.retry_after_s or wait_s, RETRY_AFTER_MAX_S)
            await self._clock.sleep(wait_s)
        raise AssertionError("unreachable")

    async def write(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, scope: str, gone_ok: bool = False
    ) -> Json:
        """POST or DELETE, once.

        Args:
            method: the HTTP method.
            path: from /api on.
            body: sent as JSON.
            scope: what the credential must be allowed, for the message when it is not.
            gone_ok: a 404 is what was wanted.
        """
        reply = await self._authorized(method, path, body)
        if reply.status == 404 and gone_ok:
            return {}
        return _accepted(reply, method, path, scope)

    async def _authorized(self, method: str, path: str, body: Mapping[str, Any] | None) -> _Reply:
        token = await self._bearer()
        reply = await self._send(method, path, token, body)
        if reply.status == 401 and isinstance(self._credential, OAuthClient):
            # Refused before anything was done: the token may have been withdrawn ahead of its time.
            self._token = None
            reply = await self._send(method, path, await self._bearer(), body)
        return reply

    async def _bearer(self) -> SecretStr:
        if isinstance(self._credential, ApiToken):
            return self._credential.token
        async with self._token_lock:
            if self._token is None or self._clock.monotonic_s() >= self._token_until_s:
                form = {
                    "client_id": self._credential.client_id,
                    "client_secret": self._credential.secret.get_secret_value(),
                    "grant_type": "client_credentials",
                }
                asked_s = self._clock.monotonic_s()
                reply = await self._send("POST", "/api/v2/oauth/token", None, form, as_form=True)
                token = text(reply.body, "access_token")
                if reply.status != 200 or not token:
                    kind = TailnetRefused if 400 <= reply.status < 500 and reply.status != 429 else TailnetError
                    raise kind(
                        f"the tailnet's API refused the OAuth client (HTTP {reply.status}{_said(reply)}): "
                        "check oauth_client_id and its secret"
                    )
                lifetime = reply.body.get("expires_in")
                lifetime_s = min(float(lifetime), 3600.0) if isinstance(lifetime, int | float) else 3600.0
                register_secret(token, passing=True)
                self._token = SecretStr(token)
                self._token_until_s = asked_s + max(lifetime_s - TOKEN_MARGIN_S, 0.0)
            return self._token

    async def _send(
        self, method: str, path: str, token: SecretStr | None, body: Mapping[str, Any] | None, *, as_form: bool = False
    ) -> _Reply:
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        try:
            async with self._session().request(
                method,
                self._base_url + path,
                headers=headers,
                json=None if as_form else body,
                data=body if as_form else None,
                allow_redirects=False,
            ) as reply:
                return _Reply(reply.status, await _json(reply), _seconds(reply.headers.get("Retry-After")))
        except TimeoutError as error:
            raise TailnetError(
                f"the tailnet's API at {self._base_url} did not answer {method} {_where(path)} "
                f"within {self._timeout_s:g} s" + ("" if method == "GET" else ": it may have been done")
            ) from error
        except aiohttp.ClientError as error:
            raise TailnetError(
                f"the tailnet's API at {self._base_url} cannot be reached ({type(error).__name__}): "
                "check the network and [tailnet] api_base_url"
            ) from error

    def _session(self) -> aiohttp.ClientSession:
        if self._open is None or self._open.closed:
            self._open = aiohttp.ClientSession(timeout=self._timeout)
        return self._open


def _worth_another_try(status: int) -> bool:
    return status == 429 or status >= 500


def _accepted(reply: _Reply, method: str, path: str, scope: str) -> Json:
    if 200 <= reply.status < 300:
        return reply.body
    what = f"{method} {_where(path)}: HTTP {reply.status}{_said(reply)}"
    if reply.status == 401:
        raise TailnetRefused(f"the tailnet's API refused the credential: is it expired or revoked? ({what})")
    if reply.status == 403:
        raise TailnetRefused(
            f"the credential may not do this: it needs the scope {scope} and must own the tags ({what})"
        )
    if reply.status == 404:
        raise TailnetError(f"the tailnet's API does not know this ({what})")
    if reply.status == 429:
        raise TailnetError(f"too many calls to the tailnet's API: try again later ({what})")
    if reply.status >= 500:
        raise TailnetError(f"the tailnet's API is in trouble: try again later ({what})")
    raise TailnetRefused(f"the tailnet's API refused ({what})")


async def _json(reply: aiohttp.ClientResponse) -> Json:
    """The answer's object; nothing when it is none. A success that is not JSON is an error, unless it is empty."""
    raw = bytearray()
    async for part in reply.content.iter_any():
        raw += part
        if len(raw) > ANSWER_MAX_B:
            raise TailnetError(f"an answer of the tailnet's API is above {ANSWER_MAX_B} bytes: is api_base_url right?")
    try:
        return table(strictjson.loads(bytes(raw)))
    except ValueError as error:
        if 200 <= reply.status < 300 and raw.strip():
            raise TailnetError("the tailnet's API gave an answer that is not JSON: is api_base_url right?") from error
        return {}


def _said(reply: _Reply) -> str:
    said = text(reply.body, "message") or text(reply.body, "detail") or text(reply.body, "error")
    return f", {said[:200]}" if said else ""


def _where(path: str) -> str:
    return path.partition("?")[0]


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and re.fullmatch(r"[0-9]{1,9}", header) else None
