"""The web page in a real browser: by keyboard, to a screen reader, dark, narrow, without JavaScript, up to date."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from meshd.api import schema as s
from tests.browser.chromium import chromium
from tests.web_room import ANN, NOW, Room, job, node

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODE = "lab-h100-7-aaaaa7"
PATHS = ("/", "/nodes?q=h100", "/jobs", "/plots?span=month", "/events", "/problems", "/nodes/h100-3", "/jobs/4001",
         "/none")  # fmt: skip
PATIENCE_MS = 60_000
"""Many times what anything here takes on a quiet machine."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def room() -> AsyncIterator[Room]:
    """A cluster in which much is wrong."""
    room = Room(nodes=8, running=8, waiting=3)
    room.tailnet.known["127.0.0.1"] = replace(room.tailnet.known[ANN], addresses=("127.0.0.1",))
    room.slurm_web_url = "https://slurm.example.com/"
    room.node_rows[2] = node(3, unfit="gpus_missing", unfit_text="2 of 8 GPUs are gone: Xid 79", jobs=[])
    room.node_rows[6] = node(7, phase="lost", gpu_load=[], jobs=[], failure="lambda does not end it")
    room.status = room.status.model_copy(update={
        "freeze": s.FreezeView(since=NOW, by="ann", reason="work on the cloud"),
        "problems": [
            s.ProblemView(severity="error", text="lambda does not end it", cure="end it there", machine=NODE),
            s.ProblemView(severity="warning", text="prices are old", since=NOW - timedelta(days=40)),
        ],
        "sources": [s.SourceView(name="slurm", ok=True), s.SourceView(name="provider:aws", ok=False)],
    })  # fmt: skip
    async with room.serve() as served:
        yield served


@asynccontextmanager
async def tab(browser: Browser, **options: Any) -> AsyncIterator[Page]:
    """A page, in which nothing may go wrong that the browser notices."""
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{error}"))
    page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    page.on("console", lambda message: wrong.append(message.text) if message.type in {"error", "warning"} else None)
    try:
        yield page
    finally:
        await context.close()
    assert [one for one in wrong if "404 (Not Found)" not in one] == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
async def test_no_rule_of_accessibility_is_broken(browser: Browser, room: Room, scheme: str, width: int) -> None:
    async with tab(browser, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
        for path in PATHS:
            await page.goto(room.base + path)
            for closed in await page.locator("details").all():
                await closed.evaluate("one => { one.open = true; }")
            found = await Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
            wide, seen = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide <= seen, f"{path} is wider than the screen"
        back = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(20, 23, 28)") is (scheme == "dark")


async def test_only_what_is_other_than_before_changes(browser: Browser, room: Room) -> None:
    async with tab(browser) as page:
        await page.goto(f"{room.base}/nodes")
        link = page.get_by_role("link", name="h100-2", exact=True)
        await link.focus()
        await page.evaluate("for (const row of document.querySelectorAll('tbody tr')) row.kept = true;")
        await page.get_by_role("searchbox").evaluate("one => { one.value = 'half a wo'; }")
        room.node_rows[1] = node(2, phase="draining", reason="drained by ann")
        room.node_rows = [node(0), *room.node_rows[:4], node(9), *room.node_rows[5:]]
        room.clock.t_s += 60
        await expect(page.locator("tbody tr", has_text="drained by ann")).to_be_visible(timeout=PATIENCE_MS)
        kept = "[...document.querySelectorAll('tbody tr')].map(row => [row.cells[0].textContent, row.kept === true])"
        assert await page.evaluate(kept) == [
            ["h100-0", False], ["h100-1", True], ["h100-2", True], ["h100-3", True], ["h100-4", True],
            ["h100-9", False], ["h100-6", True], ["h100-7", True], ["h100-8", True],
        ]  # fmt: skip
        assert await link.evaluate("one => one === document.activeElement"), "focus stays"
        assert await page.get_by_role("searchbox").input_value() == "half a wo"


async def test_what_a_visitor_opened_stays_open_and_pages_end_as_the_server_makes_them(
    browser: Browser, room: Room
) -> None:
    async with tab(browser) as page:
        await page.goto(room.base)
        await page.get_by_text("GPUs in numbers").click()
        room.status = room.status.model_copy(update={"freeze": None, "problems": [], "sources": []})
        room.event_rows = [*room.event_rows, s.EventRow(id=21, at=NOW, kind="phase", text="something new")]
        room.job_rows = [job(4001), *room.job_rows[4:]]
        room.clock.t_s += 60
        await expect(page.get_by_text("something new")).to_be_visible(timeout=PATIENCE_MS)
        assert await page.get_by_text("FROZEN").count() == 0
        assert await page.get_by_role("heading", name="Problems").count() == 0
        assert await page.locator("details[open]").count() == 1
        assert "FROZEN" not in await page.title()
        patched = await page.evaluate(SHAPE)
        await page.reload()
        assert patched == await page.evaluate(SHAPE)


SHAPE = """[...document.querySelectorAll("[data-live]")].map(one => {
    const copy = one.cloneNode(true);
    for (const open of copy.querySelectorAll("details")) open.removeAttribute("open");
    return copy.outerHTML.replace(/\\s+/g, " ");
})"""
"""All that is kept up to date, as HTML."""


async def test_all_can_be_reached_by_keyboard(browser: Browser, room: Room) -> None:
    async with tab(browser) as page:
        await page.goto(f"{room.base}/nodes")
        await page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to the content")
        assert await skip.evaluate("one => one === document.activeElement")
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.name") == "q", "behind the menu"
        await page.keyboard.type("h100-3")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/nodes?q=h100-3**")
        await page.get_by_role("link", name="h100-3", exact=True).press("Enter")
        await expect(page.get_by_role("heading", name="Node h100-3")).to_be_visible(timeout=PATIENCE_MS)
        await page.get_by_role("button", name="Pause updates").press("Enter")
        await expect(page.get_by_role("button", name="Resume updates")).to_be_visible(timeout=PATIENCE_MS)


async def test_a_pause_holds_and_a_refusal_is_said(browser: Browser, room: Room) -> None:
    async with tab(browser) as page:
        await page.goto(f"{room.base}/events")
        await page.get_by_role("button", name="Pause updates").click()
        room.event_rows = [s.EventRow(id=21, at=NOW, kind="phase", text="something new")]
        room.clock.t_s += 60
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        assert await page.get_by_text("something new").count() == 0
        await page.get_by_role("button", name="Resume updates").click()
        await expect(page.get_by_text("something new")).to_be_visible(timeout=PATIENCE_MS)
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"{room.base}/events")
    room.allow = ("carl@example.com",)
    await expect(page.get_by_text("you may no longer look")).to_be_visible(timeout=PATIENCE_MS)
    await page.reload()
    await expect(page.get_by_role("heading", name="You may not look")).to_be_visible(timeout=PATIENCE_MS)
    await context.close()


async def test_a_head_that_is_silent_is_said_aloud(browser: Browser, room: Room) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(room.base)
    await page.route("**/*", lambda route: route.abort())
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    said = page.locator("#refresh [role=alert]")
    await expect(said).to_have_text("not updated: the head does not answer", timeout=PATIENCE_MS)
    await page.unroute("**/*")
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(said).to_have_text("", timeout=PATIENCE_MS)
    await context.close()


async def test_who_may_not_look_asks_for_nothing_more(browser: Browser, room: Room) -> None:
    room.allow = ()
    asked: list[str] = []
    context = await browser.new_context()
    page = await context.new_page()
    page.on("request", lambda request: asked.append(request.url.removeprefix(room.base)))
    await page.goto(room.base)
    await expect(page.get_by_role("heading", name="You may not look")).to_be_visible(timeout=PATIENCE_MS)
    assert [path for path in asked if path != "/favicon.ico"] == ["/"]
    await context.close()


@pytest.mark.parametrize("width", [1280, 640, 400, 320])
async def test_no_figure_breaks_in_the_middle(browser: Browser, room: Room, width: int) -> None:
    """640 is a window of 1280 at a zoom of 200 %; 320 is one at 400 %."""
    room.status = room.status.model_copy(update={"spend": s.SpendView(usd_per_hour=123_920.0)})
    async with tab(browser, viewport={"width": width, "height": 800}) as page:
        await page.goto(room.base)
        lines = await page.evaluate("""[...document.querySelectorAll(".figures dd")].map(one => {
            const range = document.createRange();
            range.selectNodeContents(one.firstChild);
            return [one.firstChild.textContent.trim(), new Set([...range.getClientRects()].map(box => box.top)).size];
        })""")
        assert len(lines) >= 6 and {count for _, count in lines} == {1}, lines


async def test_on_paper_no_table_is_cut(browser: Browser, room: Room) -> None:
    async with tab(browser, viewport={"width": 720, "height": 1000}) as page:
        await page.emulate_media(media="print")
        for path in ("/", "/nodes", "/jobs", "/problems", "/nodes/h100-3"):
            await page.goto(room.base + path)
            cut = await page.evaluate("""[...document.querySelectorAll(".scroll table")]
                .filter(one => one.checkVisibility() && one.getBoundingClientRect().right > innerWidth)
                .map(one => one.className)""")
            assert cut == [], path


async def test_without_javascript_all_is_there(browser: Browser, room: Room) -> None:
    async with tab(browser, java_script_enabled=False) as page:
        await page.goto(room.base)
        await page.get_by_role("link", name="Nodes").first.click()
        assert await page.locator("tbody tr").count() == 8
        await page.get_by_label("Words").fill("gone")
        await page.get_by_role("button", name="Show").click()
        assert await page.locator("tbody tr").count() == 1
        await page.get_by_role("link", name="Plots").click()
        assert await page.get_by_role("img").count() == 4
        assert await page.get_by_role("button", name="Pause updates").count() == 0


async def test_hostile_texts_run_nothing(browser: Browser, room: Room) -> None:
    text = "<script>alert(1)</script><img src=x onerror=alert(2)>\"' onmouseover='alert(3)"
    room.node_rows[0] = node(1, reason=text, slot=text[:30], pool=text)
    room.job_rows[0] = job(4001, user=text, reason=text)
    room.event_rows = [s.EventRow(id=1, at=NOW, kind=text, text=text, machine=text)]
    async with tab(browser) as page:
        for path in ("/nodes", "/jobs", "/jobs/4001", f"/nodes/{room.node_rows[0].machine}", "/events"):
            await page.goto(room.base + path)
        assert await page.get_by_text("onerror=alert(2)").count() == 3
        # What JavaScript puts into the page must not run either.
        room.event_rows = [s.EventRow(id=2, at=NOW, kind=text, text=f"{text} again", machine=text)]
        room.clock.t_s += 60
        await expect(page.get_by_text("alert(3) again")).to_be_visible(timeout=PATIENCE_MS)
