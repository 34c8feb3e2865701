"""The web page over a real server: what it shows, and how much of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from xml.etree import ElementTree

import pytest

from meshd.api import endpoints as e
from meshd.api import schema as s
from meshd.api.endpoints import Read
from meshd.api.faults import NotReady, TooSlow
from meshd.api.web.plots import scale
from meshd.errors import StoreError
from tests.web_room import NOW, Room, job, node

PATHS = ("/", "/nodes", "/jobs", "/plots", "/events", "/problems")


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with Room().serve() as one:
        yield one


async def shown(room: Room, path: str) -> str:
    status, text, headers = await room.get(path)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8"), text
    return text


def rows_of(text: str, table: str) -> list[str]:
    """The rows of a table's body, without tags."""
    found = re.search(rf'<table class="t-{table}">.*?<tbody>(.*?)</tbody>', text, re.S)
    return [re.sub("<[^>]+>", " ", row) for row in re.findall("<tr .*?</tr>", found[1], re.S)] if found else []


async def test_the_first_page_has_what_meshctl_top_has(room: Room) -> None:
    text = await shown(room, "/")
    assert ["h100" in row and "64" in row and "24" in row for row in rows_of(text, "pools")] == [True]
    for words in ("$71.76", "$861.12", "$19,138.88", "3 run", "2 wait", "of 64 wanted"):
        assert words in text
    assert len(rows_of(text, "waiting")) == 2 and "in 4m00s" in text
    assert "rents 1 machine: $71.76 an hour become $95.68" in text and "request machine" in text
    assert text.count('<svg viewBox="0 0 520') == 3
    assert len(rows_of(text, "events")) == 10


async def test_all_it_asks_is_what_every_user_of_the_head_may_ask(room: Room) -> None:
    for path in (*PATHS, "/nodes/h100-1", "/jobs/4001", "/jobs/9001"):
        await shown(room, path)
    assert room.calls and all(isinstance(call.endpoint, Read) for call in room.calls)


async def test_many_visitors_cost_as_much_as_one(room: Room) -> None:
    for _ in range(5):
        await shown(room, "/")
    assert len([call for call in room.calls if call.endpoint is e.NODES]) == 1
    room.clock.t_s += 3
    await shown(room, "/")
    assert len([call for call in room.calls if call.endpoint is e.NODES]) == 2
    assert len([call for call in room.calls if call.endpoint is e.COST]) == 1


async def test_a_freeze_comes_first_and_problems_next(room: Room) -> None:
    room.status = room.status.model_copy(update={
        "freeze": s.FreezeView(since=NOW, by="ann", reason="work on the cloud"),
        "problems": [
            s.ProblemView(code="frozen", severity="error", text="meshd is frozen"),
            s.ProblemView(code="unfit", severity="warning", text="its GPUs fail", machine="lab-h100-2-aaaaa2"),
        ],
        "sources": [s.SourceView(name="provider:lambda", ok=False)],
    })  # fmt: skip
    text = await shown(room, "/")
    main = text[text.index("<main") :]
    first = [main.index(words) for words in ("FROZEN since", "lambda does not answer", "its GPUs fail", "Pools:")]
    assert first == sorted(first)
    assert "<title>FROZEN " in text and "Nothing: meshd is frozen." in text
    assert "1 error, 1 warning" in text and 'href="/nodes/lab-h100-2-aaaaa2"' in text


async def test_a_node_and_a_job_have_pages_that_link_to_each_other(room: Room) -> None:
    room.node_rows[1] = node(2, unfit="gpus_missing", unfit_text="2 of 8 GPUs are gone")
    text = await shown(room, "/nodes/lab-h100-2-aaaaa2")
    for words in ("2 of 8 GPUs are gone", "meshd replaces it in 4m", "$23.92 an hour", "61440 MiB", 'href="/jobs/4002"',
                  "&lt;b&gt;bold"):  # fmt: skip
        assert words in text
    text = await shown(room, "/jobs/4002")
    assert 'href="/nodes/lab-h100-2-aaaaa2"' in text and "vision" in text
    text = await shown(room, "/jobs/9001")
    assert "it boots at lambda (expected in 4m00s)" in text
    for path in ("/nodes/none", "/jobs/1", f"/nodes/{'x' * 64}", "/jobs/%2e%2e%2f", "/none"):
        status, text, _ = await room.get(path)
        assert status in {400, 404} and "<h1>This cannot be shown</h1>" in text


async def test_long_lists_are_paged_sorted_and_searched() -> None:
    async with Room(nodes=1000, running=1000, waiting=4000).serve() as room:
        text = await shown(room, "/nodes")
        assert len(rows_of(text, "nodes")) == 100 and "1 to 100 of 1000 nodes" in text and 'href="?page=2"' in text
        text = await shown(room, "/nodes?page=10")
        assert "901 to 1000 of 1000 nodes" in text and "h100-1000" in text and 'rel="next"' not in text
        assert "901 to 1000" in await shown(room, "/nodes?page=9999")
        text = await shown(room, "/nodes?q=H100-77+ready&sort=age")
        found = [row.split()[0] for row in rows_of(text, "nodes")]
        assert len(found) == 11 and found[0] == "h100-779" and found[-1] == "h100-77"
        text = await shown(room, "/jobs?q=bob&page=2")
        assert "101 to 200 of 4000 jobs with &#39;bob&#39;, 5000 in all" in text and 'href="?q=bob&amp;page=3"' in text
        for path in ("/nodes?page=-1", "/nodes?page=x&sort=secret", "/nodes?page=1e9", f"/nodes?q={'a' * 500}"):
            await shown(room, path)
        text = await shown(room, "/")
        assert len(text) < 100_000 and text.count("<tr") < 120
        assert len(await shown(room, "/jobs")) < 150_000


async def test_more_than_the_api_answers_is_said(room: Room) -> None:
    room.job_rows = [job(number) for number in range(4001, 4001 + s.JOBS_MAX + 7)]
    assert "7 more jobs in Slurm" in await shown(room, "/jobs")
    room.status = room.status.model_copy(update={
        "problems": [s.ProblemView(severity="warning", text=f"{number} are wrong") for number in range(300)],
    })  # fmt: skip
    room.clock.t_s += 3
    assert "290 more problems not shown" in await shown(room, "/")
    assert "100 more problems not shown" in await shown(room, "/problems")


@pytest.mark.parametrize(
    ("most", "whole", "top", "step"),
    [
        (2, False, 2, 0.5),
        (2, True, 2, 1),
        (0.3, True, 1, 1),
        (0, True, 1, 1),
        (3, True, 3, 1),
        (4100, True, 6000, 2000),
    ],
)
def test_axes_have_round_marks_and_things_no_halves(most: float, whole: bool, top: float, step: float) -> None:
    assert scale(most, whole=whole) == (top, step)


async def test_plots_say_in_words_and_numbers_what_they_draw(room: Room) -> None:
    for span in ("hour", "day", "week", "month", "year", "two-years", "none"):
        text = await shown(room, f"/plots?span={span}")
        drawings = [ElementTree.fromstring(one) for one in re.findall(r"<svg viewBox=\"0 0 520.*?</svg>", text, re.S)]
        assert len(drawings) == 4
        for drawing in drawings:
            described = drawing.attrib["aria-labelledby"].split()
            assert [child.tag for child in drawing][:2] == ["title", "desc"]
            assert [child.attrib["id"] for child in drawing[:2]] == described
            assert all("style" not in one.attrib for one in drawing.iter())
        tables = re.findall(r"in numbers</summary>.*?<tbody>(.*?)</tbody>", text, re.S)
        assert all(1 <= len(re.findall("<tr", table)) <= 24 for table in tables) and len(tables) == 4
    assert "GPUs in the last day: ready:" in await shown(room, "/plots?span=day")


async def test_a_part_that_cannot_be_had_costs_no_other(room: Room) -> None:
    room.give(e.COST, StoreError("the journal cannot be read"))
    room.give(e.PLAN, NotReady("no tick finished yet", "try again"))
    text = await shown(room, "/")
    assert "Today (UTC)" not in text and "Not known: no tick finished yet" in text
    room.give(e.NODES, TooSlow("meshd is slow", "wait"))
    room.clock.t_s += 3
    status, text, _ = await room.get("/nodes")
    assert status == 504 and "meshd is slow" in text
    assert (await room.get("/events"))[0] == 200


async def test_without_slurm_the_queue_is_unknown_and_not_empty(room: Room) -> None:
    room.give(e.JOBS, s.JobsView(at=NOW + timedelta(0)))
    assert "Slurm&#39;s queue cannot be read now" in await shown(room, "/jobs")


async def test_it_links_to_slurm_web_where_the_settings_name_it(room: Room) -> None:
    assert "Slurm-web" not in await shown(room, "/")
    room.slurm_web_url = "https://slurm.example.com/"
    assert '<a href="https://slurm.example.com/" rel="noreferrer">Slurm-web</a>' in await shown(room, "/jobs")


async def test_every_page_has_landmarks_headings_and_headers_of_tables(room: Room) -> None:
    for path in (*PATHS, "/nodes/h100-1", "/jobs/4001"):
        text = await shown(room, path)
        assert text.count("<main ") == text.count("<h1>") == text.count("<header>") == 1 and '<html lang="en">' in text
        ids = re.findall(r' id="([^"]+)"', text)
        assert len(ids) == len(set(ids)), path
        assert set(re.findall(r'aria-labelledby="([^" ]+)"', text)) <= set(ids)
        for table in re.findall("<table.*?</table>", text, re.S):
            assert '<th scope="col"' in table and '<th scope="row"' in table
