"""After `meshctl restore` each cloud is waited for until it was listed, across restarts, or until somebody says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from meshd.api import schema as s
from meshd.codes import EventKind, ProblemCode, RefusalCode
from meshd.config import PoolSettings, ProviderSettings
from meshd.daemon.head_api.freeze import FreezeService
from meshd.daemon.machines.restored import RestoreWatch
from meshd.model.desired import Policy
from meshd.model.observed import Fresh, Unavailable
from meshd.store.freezes import Freezes
from meshd.store.journal import Journal
from meshd.store.restored_mark import mark, marked_at
from meshd.store.restores import Restores
from tests.clocks import HandClock
from tests.codes import refused
from tests.head_room import ROOT
from tests.live import live_settings
from tests.unit.worlds import NOW, ago, snapshot

POLICY = Policy(listing_lag_s=60.0)
POOLS = {
    "any": PoolSettings(gpu="h100", max_nodes=4),
    "aws": PoolSettings(gpu="h100", max_nodes=4, providers=("aws",)),
    "gce": PoolSettings(gpu="h100", max_nodes=4, providers=("gce",)),
    "own": PoolSettings(gpu="h100", max_nodes=4, providers=("static",)),
}
CLOUDS = {"aws": ProviderSettings(), "gce": ProviderSettings(), "lambda": ProviderSettings(enabled=False)}


class Head:
    """The journal of a head, and what waits for clouds."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, HandClock(NOW)
        Journal(path).close()
        mark(path, NOW)
        self.live = live_settings(providers={**CLOUDS, "static": ProviderSettings()}, pools=POOLS)
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.path)
        self.watch = RestoreWatch(Restores(self.journal, self.clock.now()), self.live, self.clock)

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def sees(self, **listings: Any) -> None:
        now = self.clock.now()
        seen = {name: Fresh((), now) if one == "fresh" else one for name, one in listings.items()}
        self.watch.look(replace(snapshot(), instances=seen), POLICY)

    def waits_for(self) -> tuple[set[str], set[str]]:
        current = self.watch.current()
        return (set(current.unlisted), set(current.pools)) if current else (set(), set())


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    one = Head(tmp_path / "journal.db")
    yield one
    one.journal.close()


DARK = Unavailable("no route to host", NOW)


def test_each_cloud_is_waited_for_until_it_was_listed_and_restarts_change_nothing(head: Head) -> None:
    assert head.waits_for() == ({"aws", "gce"}, {"any", "aws", "gce"})
    head.clock.t_s += 59
    head.sees(aws="fresh", gce=DARK)
    assert head.waits_for()[0] == {"aws", "gce"}, "a machine may have been made just before, and not be listed yet"
    head.clock.t_s += 2
    head.sees(aws="fresh", gce=DARK)
    for _ in range(2):
        assert head.waits_for() == ({"gce"}, {"any", "gce"})
        (shown,) = head.watch.problems()
        assert (shown.code, shown.severity, shown.since) == (ProblemCode.RESTORED_UNLISTED, "error", NOW)
        assert "gce" in shown.text and "aws" not in shown.text and "`meshctl thaw --provider gce`" in shown.cure
        head.restart()
        head.sees(aws=DARK, gce=DARK)  # it was listed once: that is enough
    head.clock.t_s += 9000
    head.sees(aws=DARK, gce=Fresh((), ago(10)))
    assert head.waits_for()[0] == {"gce"}, "an old listing says nothing"
    head.sees(gce="fresh")
    assert head.waits_for() == (set(), set()) and not list(head.watch.problems())
    head.restart()
    assert head.waits_for() == (set(), set())
    assert head.journal.rows("SELECT * FROM restores") == []
    assert [one.kind for one in head.journal.events()] == [EventKind.JOURNAL] * 3


def test_somebody_lets_meshd_go_on_without_one(head: Head) -> None:
    assert not head.watch.release("azure", "ann")
    assert head.watch.release("gce", "ann") and not head.watch.release("gce", "ann")
    head.restart()
    assert head.waits_for() == ({"aws"}, {"any", "aws"})
    assert head.watch.release("aws", "ann")
    assert head.waits_for() == (set(), set())
    (first, last) = [one for one in head.journal.events() if one.kind == EventKind.THAW]
    assert (first.fields["by"], first.fields["provider"], last.fields["provider"]) == ("ann", "gce", "aws")


def test_a_cloud_that_cannot_be_used_is_waited_for_and_one_that_leaves_the_settings_is_not(head: Head) -> None:
    """Without its credential it has no listing at all; its machines may be there all the same."""
    head.clock.t_s += 100
    head.sees(aws="fresh")
    assert head.waits_for()[0] == {"gce"}
    head.live.settings = live_settings(providers={"aws": ProviderSettings()}, pools={"aws": POOLS["aws"]}).settings
    assert head.waits_for() == (set(), set())


def test_a_record_that_cannot_be_read_means_that_all_are_waited_for(head: Head) -> None:
    head.clock.t_s += 100
    head.sees(aws="fresh")
    with head.journal.writing() as db:
        db.execute("UPDATE restores SET record = 'broken'")
    head.restart()
    assert head.waits_for()[0] == {"aws", "gce"}
    current = head.watch.current()
    assert current is not None and current.at == head.clock.now()


def test_a_journal_that_was_not_restored_waits_for_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    assert Restores(journal, NOW).current is None
    journal.close()


@pytest.mark.parametrize("at", [NOW, NOW + timedelta(days=9000), datetime(1990, 1, 1, tzinfo=NOW.tzinfo)])
def test_the_mark_holds_any_time_of_day(tmp_path: Path, at: datetime) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    mark(path, at)
    journal = Journal(path)
    ((number,),) = journal.rows("PRAGMA application_id")
    found = marked_at(number)
    assert found is not None and (found == at or at.year == 1990)
    assert marked_at(0) is None
    journal.close()


async def test_thaw_of_a_cloud_leaves_a_freeze_and_thaw_leaves_the_clouds(head: Head) -> None:
    woken: list[int] = []
    service = FreezeService(Freezes(head.journal, NOW), head.clock, lambda: woken.append(1), head.watch)
    await service.freeze(s.FreezeRequest(), ROOT)
    answer = await service.thaw(s.ThawRequest(provider="aws"), ROOT)
    assert (answer.changed, answer.frozen) == (True, True) and head.waits_for()[0] == {"gce"}
    assert not (await service.thaw(s.ThawRequest(provider="aws"), ROOT)).changed
    assert [one.code for one in service.problems()] == [ProblemCode.RESTORED_UNLISTED, ProblemCode.FROZEN]
    with refused(RefusalCode.NO_SUCH_PROVIDER):
        await service.thaw(s.ThawRequest(provider="azure"), ROOT)
    assert (await service.thaw(s.ThawRequest(), ROOT)).changed
    assert head.waits_for()[0] == {"gce"} and len(woken) == 4
