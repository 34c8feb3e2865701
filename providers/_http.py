"""JSON over HTTP with an API key, for clouds without an SDK: deadlines, a size limit, and errors of the contract."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import aiohttp

from meshd import __version__
from meshd.errors import AuthFailed, Transient
from meshd.plaintext import plain_text
from meshd.runtime import strictjson
from meshd.runtime.secretfile import source_of
from providers._answers import MAX_VENDOR_TEXT, Answer, retry_after_s, unclear

MAX_ANSWER_B = 16 * 1024 * 1024
USER_AGENT = f"meshd/{__version__}"


class JsonHttp:
    """One cloud's HTTP endpoint.

    Each call opens its own connection. A kept connection that the server closes just when a create is sent would make
    that create unclear. Redirects are not followed, so that the key goes nowhere else.

    Args:
        provider: the provider's name in errors.
        base_url: scheme, host and path prefix, without a slash at the end.
        key: the API key, sent with each call and never logged; "" for none.
    """

    def __init__(self, provider: str, base_url: str, key: str) -> None:
        self._provider = provider
        self._base_url = base_url.rstrip("/")
        self._has_key = bool(key)
        self._headers = {
            "Accept": "application/json",
            "User-Agent": USER_AGENT,
            "Authorization": f"Bearer {key}",
        }
        self._session: aiohttp.ClientSession | None = None

    def need_key(self, operation: str) -> None:
        """Fail before anything is sent when there is no key.

        Raises:
            AuthFailed: there is none; the text says where to put it.
        """
        if not self._has_key:
            name = self._provider
            place = source_of(f"{name}_api_key")
            text = f"no API key: put it into {place}, or set providers.{name}.api_key_file"
            raise AuthFailed(text, provider=name, operation=operation)

    async def call(
        self, method: str, path: str, *, operation: str, changes: bool, timeout_s: float, json_body: Any = None
    ) -> Answer:
        """Send one request and return the answer, whatever its status.

        Args:
            method: the HTTP method.
            path: the path after `base_url`.
            operation: the call's name, for errors.
            changes: whether the call may make or end a machine.
            timeout_s: seconds for the whole call.
            json_body: sent as JSON when not None.

        Raises:
            Transient: the request did not reach the cloud, or it only reads.
            Uncertain: the call changes something, and its answer was cut, late or too large.
        """
        try:
            return await self._send(method, path, timeout_s, json_body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Transient(
                f"cannot connect to {self._base_url}: {_words(error)}", provider=self._provider, operation=operation
            ) from error
        except TimeoutError as error:
            text = f"no answer within {timeout_s:g} s"
            raise unclear(text, changes=changes, provider=self._provider, operation=operation) from error
        except aiohttp.InvalidURL as error:
            raise Transient(f"{self._base_url} is not a URL", provider=self._provider, operation=operation) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            text = f"the connection broke: {_words(error)}"
            raise unclear(text, changes=changes, provider=self._provider, operation=operation) from error

    async def _send(self, method: str, path: str, timeout_s: float, json_body: Any) -> Answer:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True), headers=self._headers, auto_decompress=True
            )
            # aiohttp repeats GET, PUT and DELETE when the connection breaks, and has no option to turn that off. The
            # caller would not know that the first request may have had its effect, and rate limits count both.
            self._session._retry_connection = False
        async with self._session.request(
            method,
            self._base_url + path,
            json=json_body,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            allow_redirects=False,
        ) as response:
            raw = await response.content.read(MAX_ANSWER_B)
            while not response.content.at_eof() and len(raw) < MAX_ANSWER_B:
                raw += await response.content.read(MAX_ANSWER_B - len(raw))
            if not response.content.at_eof():
                raise aiohttp.ClientPayloadError("the answer is larger than 16 MiB")
            wait_s = retry_after_s(response.headers.get("Retry-After"), datetime.now(UTC))
            text = plain_text(raw[: 4 * MAX_VENDOR_TEXT].decode("utf-8", "replace"), MAX_VENDOR_TEXT)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, _decode(raw), text, wait_s, headers)

    async def aclose(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None
            await asyncio.sleep(0)


def _decode(raw: bytes) -> Any:
    try:
        return strictjson.loads(raw)
    except ValueError:
        return None


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
