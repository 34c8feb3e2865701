"""The Paperspace adapter: glue between the contract and the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meshd.errors import AuthFailed, InvalidRequest, NotFound, ProviderError, Transient, Uncertain
from meshd.provider_api import (
    BilledKind,
    BilledListing,
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
    Offer,
    ProviderCapabilities,
    ProviderContext,
    ProviderName,
)
from providers._billed import each, listing
from providers._fresh import Freshness
from providers._reads import ReadCache, all_of
from providers._settings import parse
from providers.paperspace.billed import billed_address, billed_machine, billed_script
from providers.paperspace.brochure import capabilities
from providers.paperspace.client import PaperspaceApi
from providers.paperspace.errors import PAPERSPACE, NotDeletable, refusal_kind
from providers.paperspace.mapping import deletion, failed_create, is_ours, launch_body, to_instance, why_gone
from providers.paperspace.offers import TypeTable, candidates, shipped, wanted_template
from providers.paperspace.scripts import StartupScripts
from providers.paperspace.settings import PaperspaceSettings


class PaperspaceProvider:
    """Paperspace behind the contract `meshd.provider_api.Provider`."""

    def __init__(
        self, context: ProviderContext, settings: PaperspaceSettings, api: PaperspaceApi, table: TypeTable
    ) -> None:
        self._cluster = context.cluster
        self._settings = settings
        self._api = api
        self._table = table
        self._now = context.now
        self._fresh = Freshness(context.now, settings.fresh_s)
        self._scripts = StartupScripts(context.cluster, settings, api, context.now)
        self._templates: ReadCache[str, list[Mapping[str, Any]]] = ReadCache(context.now, settings.templates_ttl_s)
        self._was_up: set[InstanceId] = set()
        self._ending: set[InstanceId] = set()

    @property
    def name(self) -> ProviderName:
        """Always "paperspace"."""
        return PAPERSPACE

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Virtual machines, on demand only, known by their names. A machine that is off still costs money.

        The API and the console show a machine's startup script to the whole team until meshd deletes it.
        """
        return capabilities()

    async def offers(self) -> Sequence[Offer]:
        """Types by region, with prices from the settings or the shipped table, and whether there is capacity."""
        found = candidates(self._table, await self._os_templates("offers"), self._settings)
        free = await all_of(self._api.available(offer.instance_type, offer.region) for offer in found)
        return [replace(offer, available=known) for offer, known in zip(found, free, strict=True)]

    async def _os_templates(self, operation: str) -> list[Mapping[str, Any]]:
        return await self._templates.get("", partial(self._api.templates, operation))

    async def launch(self, request: LaunchRequest) -> Instance:
        """Launch one machine. Its token is its name and the name of the startup script with its user data.

        Paperspace has no idempotency token: after Uncertain, the caller looks for the name in a list before it tries
        again. The script is deleted at once when no machine was made, and by `list` after a machine has run it.
        """
        template = wanted_template(request.offer, await self._os_templates("launch"), self._settings)
        script_id = await self._scripts.make(request.token, request.user_data)
        try:
            raw, event = await self._api.create(launch_body(request, self._settings, template, script_id))
            await self._refuse_failed_create(str(raw["id"]), event)
        except Uncertain:
            raise  # there may be a machine, which needs its script
        except ProviderError:
            await self._scripts.drop(request.token, "launch")
            raise
        made = to_instance(raw)
        self._fresh.see(made.id)
        return replace(
            made,
            token=request.token,
            state=InstanceState.BOOTING,
            region=request.offer.region,
            instance_type=request.offer.instance_type,
            launched_at=made.launched_at or self._now(),
            usd_per_hour=made.usd_per_hour or request.offer.usd_per_hour,
            reason="",
        )

    async def _refuse_failed_create(self, machine_id: str, event: Mapping[str, Any]) -> None:
        """Raise when the create event says that the create failed, after deleting what it left.

        A machine that cannot be deleted here is later found by its name, as an orphan.
        """
        words = failed_create([event])
        if not words:
            return
        kind = refusal_kind(words) or InvalidRequest
        error = kind(words, provider=PAPERSPACE, operation="launch", vendor_text=words)
        try:
            await self._api.delete(machine_id)
        except ProviderError as left:
            raise error from left
        raise error

    async def get(self, instance: Instance) -> Instance:
        """The machine by its id. Its events explain why it is not found or does not start.

        Raises:
            NotFound: Paperspace knows neither the machine nor its end, and it is not new.
            Transient: Paperspace does not know the machine yet.
        """
        try:
            raw = await self._api.machine(instance.id, "get")
        except NotFound as error:
            why = why_gone(await self._api.events(instance.id, "get"))
            if not why:
                raise self._fresh.error_for(instance, error) from error
            return replace(instance, provider=PAPERSPACE, state=InstanceState.GONE, reason=why, vendor_state="")
        return await self._instance(raw, "get")

    async def _instance(self, raw: Mapping[str, Any], operation: str) -> Instance:
        """The instance for a row, corrected by the machine's events and by what this adapter did to it."""
        found = to_instance(raw)
        self._fresh.see(found.id)
        self._scripts.note(found)
        if found.state is InstanceState.RUNNING:
            self._was_up.add(found.id)
        if found.state is InstanceState.GONE:
            return found
        if found.id in self._ending:
            return replace(found, state=InstanceState.TERMINATING)
        age_s = (self._now() - found.launched_at).total_seconds() if found.launched_at else float("inf")
        not_started = found.vendor_state in ("provisioning", "off") and found.id not in self._was_up
        if not_started and age_s >= self._settings.events_after_s:
            why = failed_create(await self._api.events(found.id, operation))
            if why:
                return replace(found, state=InstanceState.FAILED, reason=why)
        if not_started and age_s < self._settings.start_s:  # made, and about to start
            return replace(found, state=InstanceState.BOOTING, reason="")
        return found

    async def list(self) -> Sequence[Instance]:
        """The account's machines named like this cluster's. Also deletes startup scripts that nobody needs any more."""
        ours = [raw for raw in await self._api.machines() if is_ours(str(raw.get("name") or ""), self._cluster)]
        machines = await all_of(self._instance(raw, "list") for raw in ours)
        here = {machine.id for machine in machines}
        self._was_up &= here
        await self._scripts.sweep(machines)
        return machines

    async def terminate(self, instance: Instance) -> None:
        """Delete the machine. If Paperspace requires it to be off first, turn it off and raise Transient.

        Raises:
            Transient: the machine was turned off, or Paperspace does not know it yet; the caller tries again.
        """
        try:
            raw = await self._api.machine(instance.id, "terminate")
        except NotFound as error:
            if why_gone(await self._api.events(instance.id, "terminate")):
                await self._scripts.drop(instance.token, "terminate")
                return
            raise self._fresh.error_for(instance, error) from error
        found = to_instance(raw)
        if found.state is not InstanceState.GONE:
            await self._delete(found)
        self._ending.add(found.id)
        await self._scripts.drop(found.token, "terminate")

    async def _delete(self, machine: Instance) -> None:
        try:
            await self._api.delete(machine.id)
        except NotDeletable as error:
            if deletion(await self._api.events(machine.id, "terminate")) in ("new", "in progress"):
                return
            if machine.state in (InstanceState.STOPPED, InstanceState.STOPPING):
                raise Transient(
                    error.text, provider=PAPERSPACE, operation="terminate", vendor_text=error.vendor_text
                ) from error
            await self._api.stop(machine.id)
            raise Transient(
                f"turned off first: {error.text}",
                provider=PAPERSPACE,
                operation="terminate",
                vendor_text=error.vendor_text,
            ) from error

    async def billed(self) -> Sequence[BilledListing]:
        """Machines, static addresses and startup scripts. No script is deleted by this, as `list` does."""
        return await all_of(
            [
                listing(PAPERSPACE, BilledKind.MACHINE, each(self._api.machines("billed"), billed_machine)),
                listing(PAPERSPACE, BilledKind.ADDRESS, each(self._api.public_ips(), billed_address)),
                listing(PAPERSPACE, BilledKind.SCRIPT, each(self._api.scripts("billed"), billed_script)),
            ]
        )

    async def check(self) -> str:
        """Check that the key is valid; returns its team.

        Raises:
            AuthFailed: the answer names no team, so the key is invalid.
        """
        session = await self._api.session()
        team = session.get("team")
        if not isinstance(team, dict):
            raise AuthFailed("the key belongs to no team", provider=PAPERSPACE, operation="check")
        limit = team.get("maxMachines")
        at_most = f", at most {limit} machines" if limit else ""
        return f"team {team.get('namespace') or team.get('id')}{at_most}"

    async def aclose(self) -> None:
        """Close the connections."""
        await self._api.aclose()


def create(context: ProviderContext) -> PaperspaceProvider:
    """Entry point of `meshd.providers`.

    Raises:
        ConfigError: the table is invalid; one line per problem.
    """
    settings = parse(PaperspaceSettings, context.settings, "[providers.paperspace]")
    return PaperspaceProvider(context, settings, PaperspaceApi(settings), shipped())
