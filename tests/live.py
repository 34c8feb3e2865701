"""Settings for tests of the daemon's parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshd.config import ClusterSettings, Settings
from meshd.daemon.live_settings import LiveSettings


def live_settings(settings: Settings | None = None, **tables: Any) -> LiveSettings:
    """The settings as the daemon holds them: those given, or the defaults with these tables. No file is behind them."""
    tables.setdefault("cluster", ClusterSettings(name="lab"))
    return LiveSettings(settings or Settings(**tables), Path("no-such-file.toml"), list)
