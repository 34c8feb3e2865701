"""`meshctl freeze` and `thaw`, the first line of status, and when scale asks."""

from __future__ import annotations

from meshd.api.endpoints import FREEZE, SCALE, STATUS, THAW
from meshd.api.schema import FreezeAnswer, FreezeRequest, FreezeView, PlanView, ScaleAnswer, StatusView, ThawRequest
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW

HELD = FreezeView(since=NOW, by="ann", reason="the cloud lies")


def test_freeze_and_thaw_say_what_holds(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(FREEZE, FreezeAnswer(frozen=True, changed=True, freeze=HELD))
    ran = meshctl("freeze", "--reason", "the cloud lies")
    assert ran.code == 0 and ran.err.startswith("FROZEN since 2026-01-02 03:04 UTC by ann: the cloud lies")
    assert [call.request for call in head.calls if call.endpoint is FREEZE] == [FreezeRequest(reason="the cloud lies")]
    head.give(FREEZE, FreezeAnswer(frozen=True, changed=False, freeze=HELD))
    assert meshctl("freeze").err.startswith("no change: FROZEN since")
    head.give(FREEZE, FreezeAnswer(frozen=True, changed=True, freeze=HELD))
    assert meshctl("freeze", "-o", "json").json()["freeze"]["by"] == "ann"
    head.give(THAW, FreezeAnswer(frozen=False, changed=True, freeze=HELD))
    assert meshctl("thaw").err.startswith("thawed")
    head.give(THAW, FreezeAnswer(frozen=False, changed=False))
    assert meshctl("thaw").err.startswith("no change")
    assert meshctl("freeze", "--reason", "x" * 201).code == 2
    head.give(THAW, FreezeAnswer(frozen=False, changed=True))
    assert "aws" in meshctl("thaw", "--provider", "aws").err
    assert [call.request for call in head.calls if call.endpoint is THAW][-1] == ThawRequest(provider="aws")
    head.give(THAW, FreezeAnswer(frozen=False, changed=False))
    assert meshctl("thaw", "--provider", "aws").err.startswith("no change")


def test_status_begins_with_the_freeze(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    view = StatusView(cluster="lab", version="1", at=NOW, freeze=HELD)
    head.give(STATUS, view)
    assert meshctl("status").out.startswith("FROZEN since 2026-01-02 03:04 UTC by ann: the cloud lies (`meshctl thaw`")
    head.give(STATUS, view.model_copy(update={"freeze": None}))
    assert "FROZEN" not in meshctl("status").out


def test_scale_asks_when_the_head_says_so(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    plan = PlanView(usd_per_hour_before=0, usd_per_hour_after=8, adds=1)
    answer = ScaleAnswer(pool="a100", gpus_before=0, gpus=4, at=NOW, plan=plan)
    head.give(SCALE, answer)
    ran = meshctl("scale", "--gpus", "4")
    assert ran.code == 2 and "there is no terminal to ask on" in ran.err and "--yes" in ran.err
    for asks, argv in ((False, ()), (True, ("--yes",))):
        head.give(SCALE, answer.model_copy(update={"asks": asks}))
        head.give(SCALE, answer.model_copy(update={"asks": asks, "target_id": 7}))
        ran = meshctl("scale", "--gpus", "4", *argv)
        assert ran.code == 0 and "accepted" in ran.err
