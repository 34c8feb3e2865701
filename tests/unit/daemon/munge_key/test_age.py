"""When the munge key was made, as the metrics tell it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from meshd.daemon.munge_key.age import AGAIN_S, SOON_S
from meshd.errors import MungeError
from tests.clocks import LoopClock, in_loop_time
from tests.unit.daemon.munge_lab import MungeLab


@in_loop_time
async def test_it_is_known_after_a_look_and_not_while_the_key_changes(tmp_path: Path) -> None:
    lab = MungeLab(tmp_path)
    lab.head.days = 400
    assert lab.age.made_at is None
    assert await lab.age.reconcile() == AGAIN_S
    assert lab.age.made_at == LoopClock().now() - timedelta(days=400)

    lab.node(1)
    lab.controller.begin("root", ())
    assert (await lab.age.reconcile(), lab.age.made_at) == (SOON_S, None)


@in_loop_time
async def test_a_unit_that_does_not_answer_is_asked_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = MungeLab(tmp_path)

    async def silent() -> datetime:
        raise MungeError("meshd-munge.path does not serve")

    monkeypatch.setattr(lab.head, "made_at", silent)
    assert (await lab.age.reconcile(), lab.age.made_at) == (SOON_S, None)
