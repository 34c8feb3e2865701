"""The receivers: sends one message to one of them, and says what it answered."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import aiohttp
import aiosmtplib
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from pydantic import SecretStr

from meshd import __version__
from meshd.codes import FaultCode
from meshd.config.models import NotifySettings
from meshd.errors import ConfigError, Fault
from meshd.notify.message import DELIVERY, SIGNATURE, Message, signature
from meshd.plaintext import plain
from meshd.plan.notify_places import address_fault, url_fault
from meshd.redaction import redact
from meshd.runtime.secretfile import read_secret, source_of

TIMEOUT_S: Final = 20.0
ANSWER_MAX_B: Final = 2048
ANSWER_SHOWN_MAX: Final = 200


class DeliveryFailed(Exception):
    """The receiver has not taken the message; its text has no secret in it."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver with its secrets.

    Attributes:
        name: as in the settings.
        settings: its table.
        url: the webhook's; "" for mail.
        hmac_secret: signs webhooks; None: they are not signed.
        smtp_password: None: no login.
        trust: the certificates that are trusted.
    """

    name: str
    settings: NotifySettings
    url: str
    hmac_secret: SecretStr | None
    smtp_password: SecretStr | None
    trust: ssl.SSLContext

    async def send(self, message: Message, at: datetime) -> str:
        """Send it; returns what the receiver answered, for people. Raises DeliveryFailed, within TIMEOUT_S."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await (self._post(message, at) if self.url else self._mail(message))
        except TimeoutError:
            raise DeliveryFailed(f"no answer within {TIMEOUT_S:g} s") from None
        except (OSError, aiohttp.ClientError, aiosmtplib.SMTPException, ValueError) as error:
            raise DeliveryFailed(self._words(error)) from None

    async def _post(self, message: Message, at: datetime) -> str:
        body, of_form = message.posted(self.settings.format)
        headers = {
            "User-Agent": f"meshd/{__version__}", "Accept-Encoding": "identity", DELIVERY: message.notice.id, **of_form,
        }  # fmt: skip
        if self.hmac_secret is not None:
            headers[SIGNATURE] = signature(self.hmac_secret.get_secret_value(), at, body)
        # No proxy of the environment, no cookie; a redirect would lead the message elsewhere.
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=_Resolver(), ssl=self.trust, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, max_line_size=8190, max_field_size=8190,
            ) as session,
            session.post(self.url, data=body, headers=headers, allow_redirects=False) as answer,
        ):  # fmt: skip
            text = self._clean((await answer.content.read(ANSWER_MAX_B)).decode("utf-8", "replace"))
            words = f"HTTP {answer.status}" + (f": {text}" if text else "")
            if 300 <= answer.status < 400:
                raise DeliveryFailed(f"{words} (it redirects, and meshd follows no redirect: name the last URL)")
            if not 200 <= answer.status < 300:
                raise DeliveryFailed(words)
            return words

    async def _mail(self, message: Message) -> str:
        one = self.settings
        client = aiosmtplib.SMTP(
            hostname=one.smtp_server, port=one.smtp_port, timeout=TIMEOUT_S,
            use_tls=one.smtp_tls == "tls", start_tls=one.smtp_tls == "starttls",
            tls_context=self.trust if one.smtp_tls != "none" else None,
            local_hostname=socket.gethostname() or "localhost",
            username=one.smtp_user or None,
            password=self.smtp_password.get_secret_value() if self.smtp_password is not None else None,
        )  # fmt: skip
        async with client:
            refused, words = await client.send_message(
                message.mail(one.mail_from, one.mail_to), sender=one.mail_from, recipients=list(one.mail_to)
            )
        if refused:
            raise DeliveryFailed(f"refused for {', '.join(refused)}")
        return self._clean(words)

    def _words(self, error: Exception) -> str:
        return self._clean(str(error)) or type(error).__name__

    def _clean(self, text: str) -> str:
        """The receiver's words, which may repeat what it was sent."""
        return plain(redact(text.replace(self.url, "its URL") if self.url else text).strip(), ANSWER_SHOWN_MAX)


class _Resolver(AbstractResolver):
    """Looks names up as the system does, and refuses addresses to which no message goes."""

    def __init__(self) -> None:
        self._system = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name. Raises OSError when one of them is refused."""
        found = await self._system.resolve(host, port, family)
        for one in found:
            if fault := address_fault(one["host"].partition("%")[0]):
                raise OSError(errno.EACCES, f"{fault}: no message is sent there")
        return found

    async def close(self) -> None:
        """Nothing is open."""


def open_receiver(name: str, settings: NotifySettings) -> Receiver:
    """Read the secrets of a receiver. Raises ConfigError when one cannot be used."""
    credential = f"notify_{name}"
    secret = read_secret(settings.hmac_secret_file, f"{credential}_hmac_secret")
    password = read_secret(settings.smtp_password_file, f"{credential}_smtp_password", one_line=False)
    url = settings.url
    if not settings.mail_to and not url:
        kept = read_secret(settings.url_file, f"{credential}_url")
        if kept is None:
            cure = f"set url, or put the URL into {source_of(f'{credential}_url')}; or set mail_to"
            raise ConfigError(f"notify.{name}", [Fault("has no receiver", cure, code=FaultCode.NO_RECEIVER)])
        url = kept.get_secret_value()
        if fault := url_fault(url):
            source = str(settings.url_file or source_of(f"{credential}_url"))
            raise ConfigError(source, [Fault(fault, "put a webhook's URL into it", code=FaultCode.SECRET_UNUSABLE)])
    if settings.smtp_user and password is None:
        cure = f"put it into {source_of(f'{credential}_smtp_password')}"
        raise ConfigError(
            f"notify.{name}.smtp_user", [Fault("there is no password", cure, code=FaultCode.CREDENTIAL_NEEDED)]
        )
    try:
        trust = ssl.create_default_context()
        if settings.ca_file is not None:
            trust.load_verify_locations(cafile=str(settings.ca_file))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        cure = "name a file with certificates in PEM"
        text = f"{settings.ca_file} cannot be used: {plain(str(error), 100)}"
        raise ConfigError(f"notify.{name}.ca_file", [Fault(text, cure, code=FaultCode.BAD_VALUE)]) from error
    return Receiver(name, settings, url, secret, password, trust)


def open_all(settings: Mapping[str, NotifySettings]) -> tuple[dict[str, Receiver], dict[str, ConfigError]]:
    """All receivers that can be used, and why the others cannot."""
    usable, off = {}, {}
    for name, table in settings.items():
        try:
            usable[name] = open_receiver(name, table)
        except ConfigError as error:
            off[name] = error
    return usable, off
