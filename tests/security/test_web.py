"""Who may look at the web page, and what a hostile text, name, browser or visitor gets."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.web.visitors import KNOWN_S, refusal
from meshd.tailnet.status import Identity, parse_identity
from tests.web_room import ANN, BOB, CI, HOST, NODE, NOW, STRANGER, Room, job, node

PATHS = ("/", "/nodes", "/jobs", "/plots", "/events", "/problems", "/nodes/h100-1", "/jobs/4001")
HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onfocus=alert(1) autofocus='",
    "{{ 7*7 }}{% include 'base.html' %}", "</title></textarea></style><svg onload=alert(1)>",
    "javascript:alert(1)", "\x1b[31mred\x9b31m\u202eright to left\x00", "&lt;script&gt;",
)  # fmt: skip


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with Room().serve() as one:
        yield one


class Read(HTMLParser):
    """What a browser makes of a page: its tags and their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_text_of_others_becomes_a_part_of_the_page(room: Room, text: str) -> None:
    name = text[:63].replace("/", "")
    room.node_rows.append(
        node(7, machine=name, slot=text, pool=text, provider=text, region=text, instance_type=text, slurm_state=text,
             failure=f"the cloud says {text}", jobs=[text], address=text, reason=text, slurm_reason=text,
             unfit=text, unfit_text=text)
    )  # fmt: skip
    said = {"user": text, "account": text, "pool": text, "partition": text, "state": text, "reason": text}
    room.job_rows.append(job(5000, job=name, **said))
    room.event_rows.append(s.EventRow(id=99, at=NOW, kind=text, text=text, machine=text, pool=text))
    room.status = room.status.model_copy(update={
        "cluster": text, "freeze": s.FreezeView(since=NOW, by=text, reason=text),
        "problems": [s.ProblemView(severity=text, text=text, cure=text, pool=text, machine=text)],
        "sources": [s.SourceView(name=text, ok=False)], "slurm": s.PublishView(error=text),
        "pools": [*room.status.pools, s.PoolView(name=text, partition=text, machines={text: 1})],
        "waiting": [s.WaitingRow(job=text, user=text, pool=text, wait="boot", text=text)],
    })  # fmt: skip
    room.give(e.PLAN, s.PlanView(steps=[s.StepRow(action=text, subject=text, reason=text)], removes=[text]))
    pages = (*PATHS, f"/nodes/{quote(name, safe='')}", f"/jobs/{quote(name, safe='')}", f"/nodes?q={quote(text)}")
    seen = 0
    for path in pages:
        status, page, _ = await room.get(path)
        assert status == 200 or "%" in path, page
        read = Read(page)
        scripts = [attrs for tag, attrs in read.tags if tag == "script"]
        assert scripts == [{"src": "/static/meshd.js", "defer": None}]
        for tag, attrs in read.tags:
            assert tag not in {"img", "iframe", "object", "style", "base", "embed"}
            assert not [one for one in attrs if one.startswith("on") or one in {"autofocus", "style", "srcdoc"}], attrs
            target = attrs.get("href") or attrs.get("src") or attrs.get("action") or ""
            assert target.startswith(("/", "#", "?")) or not target
            assert not target.startswith("//")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
        assert "49" not in read.text or "{{" not in text or "{{ 7*7 }}" in read.text
        seen += text.split("\x1b")[-1][:4] in read.text
    assert seen >= 8, "the text is shown, as text"


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (BOB, "bob@other.example"),
        (CI, "a device with tag:ci"),
        (NODE, "is a node of the cluster"),
        (STRANGER, "the tailnet does not say who you are"),
    ],
)
async def test_who_may_not_look_learns_nothing(room: Room, who: str, words: str) -> None:
    for path in (*PATHS, "/none", "/static/meshd.js", "/nodes/none"):
        status, text, headers = await room.get(path, by=who)
        assert status == 403 and words in text and "<h1>You may not look</h1>" in text
        assert "h100" not in text.replace("lab-h100-1-aaaaa1 is a node", "") and "<nav" not in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert room.calls == []


async def test_while_tailscaled_is_away_everybody_is_refused(room: Room) -> None:
    assert (await room.get("/"))[0] == 200
    room.tailnet.away = True
    assert (await room.get("/"))[0] == 200, "its last answer counts for a moment"
    room.clock.t_s += KNOWN_S + 1
    assert (await room.get("/"))[0] == 403
    room.tailnet.away = False
    assert (await room.get("/"))[0] == 200


async def test_tailscaled_is_asked_now_and_then_and_the_settings_each_time(room: Room) -> None:
    for _ in range(5):
        assert (await room.get("/events"))[0] == 200
    assert room.tailnet.asked == [ANN]
    room.allow = ("carl@example.com",)
    assert (await room.get("/events"))[0] == 403
    room.allow = ("*@example.com",)
    assert (await room.get("/events"))[0] == 200
    room.tailnet.known[ANN] = Identity("d9", "x", (ANN,), login="eve@evil.example")
    room.clock.t_s += KNOWN_S + 1
    assert (await room.get("/events"))[0] == 403


async def test_an_answer_about_another_address_is_no_proof(room: Room) -> None:
    room.tailnet.known[STRANGER] = room.tailnet.known[ANN]
    assert (await room.get("/", by=STRANGER))[0] == 403


@pytest.mark.parametrize(
    ("allow", "may"),
    [
        (("ann@example.com",), True),
        (("ANN@EXAMPLE.COM",), True),
        (("*@example.com",), True),
        (("group:eng",), True),
        (("eng@scim.example",), True),
        (("example.com/cap/meshd",), True),
        (("example.com/cap/other",), False),
        (("cap",), False),
        (("mallory@example.com",), False),
        ((), False),
        (("ann",), False),
        (("*@le.com",), False),
        (("*@com",), False),
        (("example.com",), False),
        (("tag:desk",), False),
    ],
)
def test_whom_the_settings_name(allow: tuple[str, ...], may: bool) -> None:
    ann = Identity("d1", "x", (ANN,), login="ann@example.com", groups=("eng@scim.example", "group:eng"),
                   capabilities=("example.com/cap/meshd", "cap", "mallory@example.com"))  # fmt: skip
    assert (refusal(ann, allow, is_node=False) == "") is may
    assert refusal(ann, allow, is_node=True)


def test_a_tagged_device_is_nobodys_whatever_profile_it_shows() -> None:
    answer = b"""{"Node": {"StableID": "n1", "Tags": ["tag:ci"], "Addresses": ["100.64.0.9/32"]},
        "UserProfile": {"LoginName": "ann@example.com", "Groups": ["group:eng"]},
        "CapMap": {"example.com/cap/ci": [{}], "example.com/cap/null": null}}"""
    who = parse_identity(answer)
    assert (who.login, who.groups, who.tags, who.addresses) == ("", (), ("tag:ci",), ("100.64.0.9",))
    assert refusal(who, ("ann@example.com", "group:eng", "*@example.com"), is_node=False)
    assert not refusal(who, ("tag:ci",), is_node=False)
    assert not refusal(who, ("example.com/cap/ci",), is_node=False), "a grant names a device with a tag too"
    nobody = Identity("d1", "x", (ANN,))
    assert refusal(nobody, ("", "*@"), is_node=False)


async def test_what_a_proxy_asks_is_nobodys(room: Room) -> None:
    """`tailscale serve` and `funnel` ask from its own address, for whoever they serve: a header shows it."""
    tailscale = ("x-forwarded-host", "Tailscale-Funnel-Request", "Tailscale-User-Login")
    for name in ("X-Forwarded-For", "Forwarded", *tailscale):
        status, text, _ = await room.get("/nodes", **{name: "ann@example.com"})
        assert status == 403 and "h100" not in text


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "head.tail.ts.net.evil.example",
        "127.0.0.2",
        "localhost",
        "[::1",
        "head@evil.io",
    ],
)
async def test_another_name_in_the_address_bar_is_refused(room: Room, host: str) -> None:
    status, text, _ = await room.get("/nodes", Host=host)
    assert status in {400, 421} and "h100" not in text


@pytest.mark.parametrize("host", [HOST, f"{HOST}.", f"{HOST.upper()}:7680", "head:7680", "127.0.0.1"])
async def test_its_own_names_are_taken(room: Room, host: str) -> None:
    assert (await room.get("/nodes", Host=host))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "SURPRISE"])
async def test_it_only_shows_things(room: Room, method: str) -> None:
    for path in ("/", "/nodes", "/jobs/4001", "/static/meshd.js"):
        status, text, headers = await room.get(path, method=method)
        assert status in {400, 405} and "h100" not in text
        assert "Access-Control-Allow-Origin" not in headers
    assert room.calls == []


async def test_head_is_get_without_a_body(room: Room) -> None:
    status, text, headers = await room.get("/nodes", method="HEAD")
    assert (status, text) == (200, "") and headers["Content-Type"].startswith("text/html")


async def test_every_answer_forbids_what_the_page_does_not_need(room: Room) -> None:
    for path in ("/", "/none", "/static/meshd.css", "/static/meshd.svg"):
        _, _, headers = await room.get(path)
        assert "unsafe" not in headers["Content-Security-Policy"] and "http" not in headers["Content-Security-Policy"]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'self'; script-src 'self'")
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin" and headers["Server"] == "meshd"
        assert "Set-Cookie" not in headers
    for path in PATHS:
        assert "://" not in (await room.get(path))[1].replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e%2fserver.py", "/static//etc/passwd", "/static/meshd.css%00",
             "/nodes/" + "a" * 64, "/nodes/a%2f..%2f", "/jobs/%0d%0aSet-Cookie:x", "/nodes/%ff%fe"],
)  # fmt: skip
async def test_no_path_leads_elsewhere(room: Room, path: str) -> None:
    status, text, headers = await raw(room, f"GET {path} HTTP/1.1\r\nHost: head\r\n\r\n")
    assert status in {400, 404} and "import" not in text and "Set-Cookie: x" not in headers


@pytest.mark.parametrize(
    "head",
    ["GET /" + "a" * 3000, "GET /nodes?q=" + "a" * 100_000, "GET / HTTP/1.1\r\nX: " + "a" * 100_000, "\x16\x03\x01"],
)
async def test_what_is_too_long_is_refused(room: Room, head: str) -> None:
    status, text, _ = await raw(room, f"{head} HTTP/1.1\r\nHost: head\r\n\r\n")
    assert status == 400 and len(text) < 5000
    assert (await room.get("/events"))[0] == 200


TWO_WAYS = (
    "Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 6", "Content-Length : 5",
    "Content-Length: +5", "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding:\x0bchunked", "X: a\r\n b", "X: a\nHost: evil.example", "Host: evil.example", "X\x00: a",
)  # fmt: skip


@pytest.mark.parametrize("header", TWO_WAYS)
async def test_a_request_that_can_be_read_two_ways_is_refused(
    room: Room, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No second request comes out of its body, and no trace goes into the log for each."""
    hidden = "GET /nodes HTTP/1.1\r\nHost: head\r\n\r\n"
    sent = f"GET /static/meshd.svg HTTP/1.1\r\nHost: head\r\n{header}\r\n\r\n0\r\n\r\n{hidden}"
    for _ in range(3):
        assert "200" not in await all_of(room, sent)
    assert not [one for one in caplog.records if one.exc_info]


async def all_of(room: Room, text: str) -> str:
    """All that comes back until the server ends the connection."""
    host, port = room.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(ANN, 0))
    try:
        writer.write(text.encode("latin-1"))
        return (await asyncio.wait_for(reader.read(), 20)).decode("utf-8", "replace")
    finally:
        writer.close()


async def test_half_a_request_holds_no_place_of_others(room: Room) -> None:
    """Many connections from many addresses, each with a head that does not end."""
    host, port = room.base.removeprefix("http://").split(":")
    held = []
    try:
        for number in range(200):
            local = (f"127.2.0.{number // 10 + 1}", 0)
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=local)
            writer.write(b"GET / HTTP/1.1\r\nHost: head\r\nX: ")
            held.append((reader, writer))
        for _ in range(3):
            assert (await room.get("/events"))[0] == 200
        async with asyncio.timeout(60):
            for reader, _ in held:
                with suppress(ConnectionError):
                    assert await reader.read() == b"", "each is ended, and nobody waits for its end"
    finally:
        for _, writer in held:
            writer.close()


async def test_who_asks_without_a_pause_is_slowed_down_and_others_are_not(room: Room) -> None:
    room.tailnet.known[BOB] = Identity("d2", "x", (BOB,), login="ann@example.com")
    found = {(await room.get("/static/meshd.svg"))[0] for _ in range(35)}
    found |= set(await asyncio.gather(*(status_of(room, "/static/meshd.svg") for _ in range(60))))
    assert 429 in found or 0 in found
    assert (await room.get("/events", by=BOB))[0] == 200


async def status_of(room: Room, path: str) -> int:
    """0 where the connection is refused."""
    try:
        return (await room.get(path))[0]
    except OSError:
        return 0
    except Exception as error:
        if "disconnected" in str(error).lower() or "reset" in str(error).lower():
            return 0
        raise


async def raw(room: Room, text: str) -> tuple[int, str, str]:
    """Status, text and headers of the answer to bytes as they are."""
    host, port = room.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(ANN, 0))
    try:
        writer.write(text.encode())
        await writer.drain()
        began, found = time.monotonic(), b""
        while b"\r\n\r\n" not in found and time.monotonic() < began + 20:
            part = await asyncio.wait_for(reader.read(65536), 20)
            if not part:
                break
            found += part
        head, _, body = found.decode("utf-8", "replace").partition("\r\n\r\n")
        return int(head.split()[1]), body, head
    finally:
        writer.close()
