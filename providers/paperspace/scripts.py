"""The lifecycle of startup scripts. Each holds a secret, so it is deleted when its machine no longer needs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from meshd.errors import ProviderError
from meshd.provider_api import Instance, InstanceId, InstanceState
from providers.paperspace.client import PaperspaceApi
from providers.paperspace.mapping import stale_scripts
from providers.paperspace.settings import PaperspaceSettings

log = logging.getLogger(__name__)


class StartupScripts:
    """Creates one startup script per machine and deletes those that no machine needs any more.

    Its memory is only a shortcut: after a restart, the account's list has all that is needed. Each sweep tries failed
    deletions again. A failed deletion never fails the caller's operation.
    """

    def __init__(
        self, cluster: str, settings: PaperspaceSettings, api: PaperspaceApi, now: Callable[[], datetime]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._api = api
        self._now = now
        self._of_token: dict[str, str] = {}
        self._up_since: dict[InstanceId, datetime] = {}
        self._first_seen: dict[str, datetime] = {}
        self._swept_at: datetime | None = None

    async def make(self, token: str, script: str) -> str:
        """Create a startup script named like the machine; returns its id."""
        script_id = await self._api.create_script(token, script)
        self._of_token[token] = script_id
        return script_id

    async def drop(self, token: str, operation: str) -> None:
        """Delete the script of a machine that does not need it any more. If that fails, the next sweep tries again."""
        script_id = self._of_token.pop(token, None)
        if script_id is None:
            self._swept_at = None
        else:
            await self._delete(script_id, operation)

    def note(self, machine: Instance) -> None:
        """Record when a machine was first seen running."""
        if machine.state is InstanceState.RUNNING:
            self._up_since.setdefault(machine.id, self._now())

    async def sweep(self, machines: Sequence[Instance]) -> None:
        """Delete the scripts that no machine needs, if the last sweep is long enough ago.

        Args:
            machines: all machines of this cluster, just listed.
        """
        for machine in machines:
            self.note(machine)
        now = self._now()
        if self._swept_at and now - self._swept_at < timedelta(seconds=self._settings.script_sweep_s):
            return
        self._swept_at = now
        try:
            scripts = await self._api.scripts("list")
        except ProviderError as error:
            log.warning("cannot list startup scripts; scripts with secrets stay: %s", error)
            return
        known = {str(script["id"]) for script in scripts}
        self._first_seen = {script_id: self._first_seen.get(script_id, now) for script_id in known}
        here = {machine.id for machine in machines}
        self._up_since = {machine_id: at for machine_id, at in self._up_since.items() if machine_id in here}
        self._of_token = {token: script_id for token, script_id in self._of_token.items() if script_id in known}
        for script_id in stale_scripts(
            scripts,
            machines,
            cluster=self._cluster,
            up_since=self._up_since,
            first_seen=self._first_seen,
            now=now,
            settings=self._settings,
        ):
            await self._delete(script_id, "list")

    async def _delete(self, script_id: str, operation: str) -> None:
        try:
            await self._api.delete_script(script_id, operation)
        except ProviderError as error:
            self._swept_at = None
            log.warning("cannot delete startup script %s, which holds a secret; will try again: %s", script_id, error)
