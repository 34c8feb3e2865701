"""The tables `[budget]` and `[pools.NAME.budget]`."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshd import config
from meshd.codes import FaultCode
from meshd.config.pools import pool_of
from meshd.errors import ConfigError
from meshd.model.budget import BudgetLimits

PROVIDER = "[providers.aws]\nregions = ['us-east-1']\n[pools.a]\ngpu = 'h100'\n[pools.b]\ngpu = 'h100'\n"


def loaded(tmp_path: Path, tables: str) -> config.Settings:
    path = tmp_path / "meshd.toml"
    path.write_text(tables)
    return config.parse(config.read(path))


def test_limits_by_pool(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"{PROVIDER}[pools.b.budget]\nusd_per_day = 5\nkill_at = 1.5\n[budget]\nwarn_at = 0.5\n")
    assert found.budgets == {"b": BudgetLimits(usd_per_day=5.0, kill_at=1.5)}
    assert [pool_of(name, found, ["aws"]).budgeted for name in ("a", "b")] == [False, True]
    both = loaded(tmp_path, f"{PROVIDER}[budget]\nusd_per_hour = 9\nusd_per_month = 900\n")
    assert both.budgets == {"": BudgetLimits(usd_per_hour=9.0, usd_per_month=900.0)}
    assert all(pool_of(name, both, ["aws"]).budgeted for name in ("a", "b"))
    assert loaded(tmp_path, PROVIDER).budgets == {}


@pytest.mark.parametrize(
    "line",
    [
        "usd_per_day = 0",
        "usd_per_day = -1",
        "usd_per_day = inf",
        "usd_per_day = 1e303",
        "usd_per_day = 1\nkill_at = 1e308",
        "usd_per_day = 1\nwarn_at = 1.1",
        "usd_per_day = 1\nkill_at = 0.9",
        "kill_at = 2",
        "usd_per_hour = 1\nkill_at = 2",
    ],
)
@pytest.mark.parametrize("table", ["budget", "pools.a.budget"])
def test_a_budget_that_means_nothing_is_refused(tmp_path: Path, table: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, f"{PROVIDER}[{table}]\n{line}\n")
    assert [fault.code for fault in caught.value.faults] == [FaultCode.BAD_VALUE]
    assert ".".join(caught.value.faults[0].key).startswith(table)
