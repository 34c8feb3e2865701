"""`meshctl notify test`."""

from __future__ import annotations

from meshd.api.endpoints import NOTIFY_TEST
from meshd.api.schema import NotifyTestAnswer, NotifyTestRequest, NotifyTestRow
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl


def test_it_shows_each_answer_and_fails_with_the_worst(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    good = NotifyTestRow(receiver="chat", ok=True, text="HTTP 200: ok")
    bad = NotifyTestRow(receiver="ops", ok=False, text="HTTP 404")
    head.give(NOTIFY_TEST, NotifyTestAnswer(rows=[good]))
    ran = meshctl("notify", "test", "chat")
    assert ran.code == 0 and "chat: took it: HTTP 200: ok" in ran.err
    assert [call.request for call in head.calls if call.endpoint is NOTIFY_TEST] == [NotifyTestRequest(receiver="chat")]
    head.give(NOTIFY_TEST, NotifyTestAnswer(rows=[good, bad]))
    ran = meshctl("notify", "test")
    assert ran.code == 1 and "ops: FAILED: HTTP 404" in ran.err
    assert [row["ok"] for row in meshctl("notify", "test", "-o", "json").json()["rows"]] == [True, False]
    head.give(NOTIFY_TEST, NotifyTestAnswer())
    assert meshctl("notify", "test").code == 1
