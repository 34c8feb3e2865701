"""The settings that are in force, and what a reload changes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from meshd import config
from meshd.config import Settings
from meshd.daemon import wanted
from meshd.errors import ConfigError
from meshd.model.machine import Machine
from meshd.obs import log as logging

log = structlog.get_logger(__name__)

RELOADABLE: Final = ("pools", "timing", "prices", "log", "slurm")
"""Tables that a reload puts in force; the others need a restart."""


class InForce:
    """The settings, as they are now.

    Args:
        settings: those that meshd starts with.
        path: the file they are from.
        machines: those that are rented, which must keep their places.

    Attributes:
        settings: read them anew for each use: a reload puts others here.
        problem: why the file says something else; "" when all it says is in force.

    Raises:
        ConfigError: a machine has no place in them.
    """

    def __init__(self, settings: Settings, path: Path, machines: Callable[[], Iterable[Machine]]) -> None:
        wanted.check_rented(settings, machines(), str(path))
        self.settings = settings
        self.problem = ""
        self._path = path
        self._machines = machines

    def reload(self) -> None:
        """Read the file anew; the old settings stay when the new ones are wrong."""
        try:
            new = config.load(self._path)
            wanted.check_rented(new, self._machines(), str(self._path))
        except ConfigError as error:
            self.problem = f"the new settings are wrong, the old ones stay in force: {'; '.join(error.problems)}"
            log.error("reload_refused", problems=error.problems)
            return
        old = self.settings
        self.settings = old.model_copy(update={table: getattr(new, table) for table in RELOADABLE})
        waiting = [
            table
            for table in Settings.model_fields
            if table not in RELOADABLE and getattr(new, table) != getattr(old, table)
        ]
        self.problem = f"changes in {', '.join(waiting)} need `systemctl restart meshd`" if waiting else ""
        logging.set_up(self.settings.log)
        log.info("reloaded", waiting_for_restart=waiting)
