"""Webhooks and mail over the wire: real servers, TLS, signatures, and what a server or a node could do to them."""

from __future__ import annotations

import asyncio
import email
import hashlib
import hmac
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult
from pydantic import SecretStr

from meshd.config import NotifySettings
from meshd.errors import ConfigError
from meshd.notify import receiver as receiver_module
from meshd.notify.message import DELIVERY, SIGNATURE, Message
from meshd.notify.receiver import DeliveryFailed, Receiver, open_receiver
from meshd.plan.notices import Alert, Item, Notice, State
from meshd.redaction import register_secret

LONG = "y" * 9999
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ALERT = Alert("k", "slurm_unreadable", "error", "Slurm does not answer", "`systemctl status slurmctld`", pool="h100")


def message(*alerts: Alert, state: State = State.BEGUN, test: bool = False) -> Message:
    ended = NOW if state is State.RESOLVED else None
    items = tuple(Item(state, one, NOW - timedelta(hours=1), ended) for one in alerts or (ALERT,))
    return Message("lab", "ops", Notice("0123456789ab", NOW, items), test)


@dataclass
class Hook:
    """A web server that answers as it is told, and what it got."""

    status: int = 200
    body: bytes = b"thanks"
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    released: asyncio.Event = field(default_factory=asyncio.Event)
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.got.append((request.path, dict(request.headers), await request.read()))
        if self.hangs:
            await self.released.wait()
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@asynccontextmanager
async def hook(tls: ssl.SSLContext | None = None) -> AsyncIterator[Hook]:
    one, app = Hook(), web.Application()
    app.router.add_route("*", "/{rest:.*}", one.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host = "localhost" if tls else "127.0.0.1"
    one.url = f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}/hook"
    try:
        yield one
    finally:
        await runner.cleanup()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate of localhost that only who names it trusts, and a server's side of it."""
    folder = tmp_path_factory.mktemp("tls")
    argv = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run([*argv.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


def receiver(**settings: Any) -> Receiver:
    return open_receiver("ops", NotifySettings(**settings))


async def test_a_webhook_has_what_happened_where_since_when_and_what_to_do() -> None:
    async with hook() as server:
        assert await receiver(url=server.url).send(message(), NOW) == "HTTP 200: thanks"
        await receiver(url=server.url).send(message(state=State.RESOLVED), NOW)
    (_, headers, first), (_, _, second) = server.got
    assert headers[DELIVERY] == "0123456789ab" and SIGNATURE not in headers
    document = json.loads(first)
    assert document["schema_version"] == 1 and document["kind"] == "problems" and document["cluster"] == "lab"
    (problem,) = document["problems"]
    assert problem == {
        "state": "begun", "code": "slurm_unreadable", "severity": "error", "text": ALERT.text, "cure": ALERT.cure,
        "pool": "h100", "machine": "", "count": 1, "since": "2026-01-02T02:04:05Z", "ended_at": None,
    }  # fmt: skip
    assert json.loads(second)["problems"][0]["ended_at"] == "2026-01-02T03:04:05Z"


async def test_it_is_signed_with_the_secret_of_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct-horse\n")
    async with hook() as server:
        await receiver(url=server.url, hmac_secret_file=secret).send(message(), NOW)
    (_, headers, body) = server.got[0]
    at, _, digest = headers[SIGNATURE].removeprefix("t=").partition(",v1=")
    assert digest == hmac.new(b"correct-horse", at.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert int(at) == int(NOW.timestamp())


async def test_the_url_and_secrets_are_files_of_the_credentials_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(ConfigError):
        receiver()
    async with hook() as server:
        (tmp_path / "notify_ops_url").write_text(server.url + "/T0SECRETPATH")
        one = receiver(format="slack")
        await one.send(message(), NOW)
        server.status, server.body = 403, b"no such hook: " + one.url.encode()
        with pytest.raises(DeliveryFailed) as refused:
            await one.send(message(), NOW)
    assert "T0SECRETPATH" not in str(refused.value) and "HTTP 403" in str(refused.value)
    text = json.loads(server.got[0][2])["text"]
    assert "Slurm does not answer" in text and "`systemctl status slurmctld`" in text


async def test_tls_is_checked(tls: tuple[Path, ssl.SSLContext]) -> None:
    cert, context = tls
    async with hook(context) as server:
        with pytest.raises(DeliveryFailed):
            await receiver(url=server.url).send(message(), NOW)
        assert server.got == []
        await receiver(url=server.url, ca_file=cert).send(message(), NOW)
    assert len(server.got) == 1


async def test_no_redirect_is_followed_and_only_a_little_of_the_answer_is_read() -> None:
    async with hook() as elsewhere, hook() as server:
        server.status, server.headers = 307, {"Location": elsewhere.url}
        with pytest.raises(DeliveryFailed, match="redirects"):
            await receiver(url=server.url).send(message(), NOW)
        assert elsewhere.got == []
        server.status, server.headers, server.body = 500, {}, b"\x1b[31m" + b"x" * 10_000_000
        with pytest.raises(DeliveryFailed) as failed:
            await receiver(url=server.url).send(message(), NOW)
    assert len(str(failed.value)) < 300 and str(failed.value).isprintable()


async def test_a_server_that_hangs_or_is_away_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "TIMEOUT_S", 0.3)
    async with hook() as server:
        server.hangs = True
        with pytest.raises(DeliveryFailed, match="no answer"):
            await receiver(url=server.url).send(message(), NOW)
    with pytest.raises(DeliveryFailed):
        await receiver(url=server.url).send(message(), NOW)


async def test_a_name_that_leads_to_a_metadata_service_is_refused() -> None:
    # The system's own resolver takes this number for 169.254.169.254, as any name could lead there.
    with pytest.raises(DeliveryFailed, match="link-local"):
        await receiver(url="https://0xa9fea9fe/latest/meta-data").send(message(), NOW)


async def test_words_of_nodes_and_clouds_are_cleaned() -> None:
    register_secret("tskey-of-the-lab")
    evil = Alert("k", "agent_trouble", "error", "a\r\nBcc: x@evil\x1b[2J <!channel> @here tskey-of-the-lab " + LONG)
    async with hook() as server:
        await receiver(url=server.url).send(message(evil), NOW)
        await receiver(url=server.url, format="slack").send(message(evil), NOW)
    text = json.loads(server.got[0][2])["problems"][0]["text"]
    assert text.isprintable() and len(text) <= 500 and "tskey" not in text
    slack = json.loads(server.got[1][2])["text"]
    assert "<!channel>" not in slack and "@here" not in slack and "\x1b" not in slack
    mail = message(evil).mail("meshd@example.org", ("ops@example.org",))
    parsed = email.message_from_bytes(mail.as_bytes(), policy=default)
    assert "Bcc" not in parsed and set(parsed.keys()) == {
        "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "X-Mailer", "Content-Type",
        "Content-Transfer-Encoding", "MIME-Version",
    }  # fmt: skip
    title = Alert("k", "c", "error", "x", machine="m\r\nBcc: x@evil")
    assert "Bcc" not in message(title).mail("meshd@example.org", ("ops@example.org",))


async def test_discord_and_ntfy_take_a_message_of_any_length() -> None:
    """Discord refuses content of more than 2,000 characters; ntfy makes a file of more than 4,096 bytes."""
    many = [Alert(f"k{number}", "agent_trouble", "error", f"ü @everyone {LONG}") for number in range(25)]
    async with hook() as server:
        for form in ("discord", "ntfy"):
            one = receiver(url=server.url, format=form)
            await one.send(message(*many), NOW)
            await one.send(message(state=State.RESOLVED), NOW)
            await one.send(message(test=True), NOW)
    long, over, test = (json.loads(body) for _, _, body in server.got[:3])
    assert 1000 < len(long["content"]) <= 2000 and long["content"].startswith("[lab] error: agent_trouble")
    assert all(one["allowed_mentions"] == {"parse": []} for one in (long, over, test))
    assert "resolved" in over["content"] and "test" in test["content"]
    for (_, headers, body), priority in zip(server.got[3:], ("high", "default", "default"), strict=True):
        assert 0 < len(body) <= 4096 and body.decode()
        assert headers["Priority"] == priority and headers["Title"].startswith("[lab] ")
        assert headers["Content-Type"].startswith("text/plain") and headers[DELIVERY]


class Mailbox:
    """What a mail server took."""

    def __init__(self) -> None:
        self.got: list[tuple[str, list[str], bytes]] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.answer = "250 queued as 42"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.got.append((envelope.mail_from, envelope.rcpt_tos, envelope.content))
        return self.answer

    def login(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"sesame street", handled=False)


@asynccontextmanager
async def mail_server(
    context: ssl.SSLContext | None = None, *, at_once: bool = False
) -> AsyncIterator[tuple[Mailbox, int]]:
    box = Mailbox()
    starttls = None if at_once else context

    def make() -> SMTP:
        return SMTP(
            box, hostname="mail", tls_context=starttls, require_starttls=starttls is not None,
            authenticator=box.login if context else None, auth_required=context is not None,
            auth_require_tls=not at_once,
        )  # fmt: skip

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, ssl=context if at_once else None)
    try:
        yield box, server.sockets[0].getsockname()[1]
    finally:
        server.close()


MAIL = {"mail_to": ("ops@example.org", "ann@example.org"), "mail_from": "meshd@example.org"}


async def test_mail_by_the_server_of_this_machine() -> None:
    async with mail_server() as (box, port):
        assert "queued as 42" in await receiver(smtp_port=port, **MAIL).send(message(), NOW)
        box.answer = "554 no such user here"
        with pytest.raises(DeliveryFailed, match="554"):
            await receiver(smtp_port=port, **MAIL).send(message(), NOW)
    sender, recipients, raw = box.got[0]
    assert (sender, recipients) == ("meshd@example.org", list(MAIL["mail_to"]))
    mail = email.message_from_bytes(raw, policy=default)
    assert mail["Subject"] == "[lab] error: slurm_unreadable (h100)" and "0123456789ab" in mail["Message-ID"]
    text = mail.get_content()
    assert "since: 2026-01-02 02:04 UTC" in text and "what to do: `systemctl status slurmctld`" in text


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # aiosmtpd's own
@pytest.mark.parametrize("at_once", [False, True])
async def test_mail_over_tls_with_a_login(tls: tuple[Path, ssl.SSLContext], tmp_path: Path, *, at_once: bool) -> None:
    cert, context = tls
    password = tmp_path / "password"
    password.write_text("sesame street")
    way = {"smtp_server": "localhost", "smtp_tls": "tls" if at_once else "starttls", "smtp_user": "meshd", **MAIL}
    async with mail_server(context, at_once=at_once) as (box, port):
        with pytest.raises(DeliveryFailed):
            await receiver(smtp_port=port, smtp_password_file=password, **way).send(message(), NOW)
        assert box.logins == [], "no login with a server that is not trusted"
        await receiver(smtp_port=port, smtp_password_file=password, ca_file=cert, **way).send(message(), NOW)
        password.write_text("another word")
        with pytest.raises(DeliveryFailed) as refused:
            await receiver(smtp_port=port, smtp_password_file=password, ca_file=cert, **way).send(message(), NOW)
    assert len(box.got) == 1 and "535" in str(refused.value) and "another word" not in str(refused.value)
    with pytest.raises(ConfigError):
        receiver(**way)


async def test_a_secret_is_in_no_word_of_the_receiver() -> None:
    one = receiver(url="http://127.0.0.1:1/x")
    signed = Receiver("ops", one.settings, one.url, SecretStr("correct-horse"), SecretStr("sesame"), one.trust)
    assert "correct-horse" not in repr(signed) and "sesame" not in repr(signed)
