"""Which pools Slurm's queue drives: the settings and Slurm itself have to say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from meshd.config import Settings
from meshd.daemon.machines.desired_state import DesiredState
from meshd.model.budget import Spent
from meshd.model.desired import Promise
from meshd.model.observed import Fresh, Observation, SlurmView, Unavailable
from meshd.store.journal import Journal
from tests.clocks import SimClock
from tests.live import live_settings
from tests.unit.worlds import NOW

AWAY = Unavailable("does not answer", NOW)


@dataclass
class Outside:
    """What the parts around it say."""

    current: Observation[SlurmView] = AWAY
    shapes_fixed: bool = False

    def spent(self, now: object) -> dict[str, Spent]:
        return {}


@dataclass
class Promises:
    current: dict[str, Promise] = field(default_factory=dict)


def seen(power_saving: bool) -> Fresh[SlurmView]:
    return Fresh(SlurmView("24.11.5", {}, (), power_saving=power_saving), NOW)


def test_the_settings_and_slurm_decide_and_an_outage_changes_nothing(tmp_path: Path) -> None:
    settings = Settings(
        providers={"aws": {}},
        pools={"queue": {"gpu": "h100", "scale_from_queue": True}, "hand": {"gpu": "h100", "scale_from_queue": False}},
    )  # type: ignore[arg-type]
    journal, outside = Journal(tmp_path / "journal.db"), Outside()
    desired = DesiredState(
        live_settings(settings), journal, {}, outside, Promises(), outside, SimClock(NOW), outside,
        may_change_devices=False,
    )  # fmt: skip

    def driven() -> set[str]:
        return {name for name, pool in desired().pools.items() if pool.from_queue}

    assert driven() == {"queue"}, "Slurm was not read yet: its machines are not taken for others"
    for power_saving in (False, True):
        outside.current = seen(power_saving)
        expected = {"queue"} if power_saving else set()
        assert driven() == expected
        outside.current = AWAY
        assert driven() == expected
    journal.close()
