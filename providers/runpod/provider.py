"""The RunPod adapter: glue between the contract and the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from meshd.errors import AuthFailed, InvalidRequest, NotFound
from meshd.provider_api import (
    Instance,
    InstanceId,
    InstanceState,
    LaunchRequest,
    MachineKind,
    Offer,
    ProviderCapabilities,
    ProviderContext,
    ProviderName,
)
from providers._fresh import Freshness
from providers._permissions import Probe, missing_permissions, require_none_missing
from providers._reads import all_of
from providers._settings import parse
from providers.runpod.client import RunpodApi
from providers.runpod.errors import RUNPOD
from providers.runpod.mapping import ANYWHERE, launch_body, to_instance
from providers.runpod.names import PodKind, is_ours, parse_type
from providers.runpod.offers import cpu_offers, cpu_questions, gpu_offers, gpu_questions
from providers.runpod.settings import RunpodSettings
from providers.runpod.spot_client import SpotApi
from providers.runpod.spot_mapping import bid_places, spot_offers

REMEMBERED_FOR = timedelta(hours=1)

USER_DATA_MAX_B = 16 * 1024
"""RunPod names no limit. In base64 this stays far below the 128 KiB that Linux takes as one argument."""


class AcceptedDeletions:
    """Remembers for an hour which deletions were accepted.

    Args:
        now: UTC clock.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._accepted_at: dict[InstanceId, datetime] = {}

    def accept(self, instance_id: InstanceId) -> None:
        """Note that the deletion was accepted now."""
        now = self._now()
        kept = {known: at for known, at in self._accepted_at.items() if now - at < REMEMBERED_FOR}
        self._accepted_at = {**kept, instance_id: now}

    def accepted(self, instance_id: InstanceId) -> bool:
        """Whether a deletion was accepted within the last hour."""
        at = self._accepted_at.get(instance_id)
        return at is not None and self._now() - at < REMEMBERED_FOR

    def look(self, instance: Instance) -> Instance:
        """The instance as it stands: one that is there although its deletion was accepted is ending."""
        if instance.state is InstanceState.GONE or not self.accepted(instance.id):
            return instance
        return replace(instance, state=InstanceState.TERMINATING, reason="its deletion is accepted")


class RunpodProvider:
    """RunPod's pods behind the contract `meshd.provider_api.Provider`."""

    def __init__(
        self, context: ProviderContext, settings: RunpodSettings, api: RunpodApi, spot: SpotApi | None = None
    ) -> None:
        self._cluster = context.cluster
        self._spot = spot
        self._settings = settings
        self._api = api
        self._now = context.now
        self._fresh = Freshness(context.now, settings.fresh_s)
        self._deletions = AcceptedDeletions(context.now)

    @property
    def name(self) -> ProviderName:
        """Always "runpod"."""
        return RUNPOD

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Containers, without a TUN device and systemd unless the settings know better; spot when they allow it.

        A lost create is found by its name; marks are kept in the container's environment, in place of tags. A
        container that ends leaves a stopped pod behind, whose disk goes on costing. API and console show the start
        command, which is the user data, to everybody in the account.
        """
        return ProviderCapabilities(
            machine_kind=MachineKind.CONTAINER,
            tun=self._settings.pods_have_tun,
            systemd=self._settings.pods_have_systemd,
            spot=self._settings.spot,
            user_data_max_b=USER_DATA_MAX_B,
            user_data_private=False,
            foreign_hosts="community" in self._settings.clouds,
        )

    async def offers(self) -> Sequence[Offer]:
        """Pods by data centre, with today's price; RunPod's stock is a hint, a create may be refused all the same."""
        answers = await all_of(
            [
                *(self._gpus(cloud, count) for cloud, count in gpu_questions(self._settings)),
                *(self._cpus(vcpus) for vcpus in cpu_questions(self._settings)),
            ]
        )
        return [offer for offers in answers for offer in offers]

    async def _gpus(self, cloud: str, count: int) -> list[Offer]:
        types = await self._api.gpu_types(cloud, count)
        on_demand = gpu_offers(types, cloud, count, self._settings, self._now())
        places = bid_places(on_demand)
        if self._spot is None or not places:
            return on_demand
        return [*on_demand, *spot_offers(on_demand, await self._spot.bids(cloud, count, places), self._settings)]

    async def _cpus(self, vcpus: int) -> list[Offer]:
        return cpu_offers(await self._api.cpu_flavours(vcpus), vcpus, self._settings, self._now())

    async def launch(self, request: LaunchRequest) -> Instance:
        """Create one pod, named by its token, that runs the user data as its start command.

        RunPod takes no idempotency token: after Uncertain, list and look for the name before launching again.
        """
        kind = parse_type(request.offer.instance_type)
        if kind is None:
            text = f"{request.offer.instance_type!r} is no type that this adapter offers"
            raise InvalidRequest(text, provider=RUNPOD, operation="launch")
        if request.offer.spot:
            made = await self._rent_spot(request, kind)
        else:
            made = to_instance(await self._api.create(launch_body(request, kind, self._settings)))
        self._fresh.see(made.id)
        return replace(
            made,
            token=request.token,
            region=made.region or request.offer.region,
            instance_type=made.instance_type or request.offer.instance_type,
            usd_per_hour=made.usd_per_hour or request.offer.usd_per_hour,
        )

    async def _rent_spot(self, request: LaunchRequest, kind: PodKind) -> Instance:
        if self._spot is None or kind.cpu:
            text = "CPU pods are rented on demand only" if self._spot else "[providers.runpod] spot is false"
            raise InvalidRequest(text, provider=RUNPOD, operation="launch")
        return await self._spot.rent(request, kind)

    async def get(self, instance: Instance) -> Instance:
        """The pod by its id.

        Raises:
            NotFound: RunPod does not know it, and it is not fresh.
            Transient: RunPod does not know it, but may not know it yet.
        """
        try:
            return self._deletions.look(to_instance(await self._api.pod(instance.id)))
        except NotFound as error:
            if self._deletions.accepted(instance.id):
                return replace(instance, state=InstanceState.GONE, reason="deleted", vendor_state="")
            raise self._fresh.error_for(instance, error) from error

    async def list(self) -> Sequence[Instance]:
        """The account's pods that are this cluster's, by our mark or else by the form of the name."""
        pods = [pod for pod in await self._api.pods() if is_ours(pod, self._cluster)]
        instances = [self._deletions.look(to_instance(pod)) for pod in pods]
        for instance in instances:
            self._fresh.see(instance.id)
        return instances

    async def terminate(self, instance: Instance) -> None:
        """Delete the pod, with its disk. A network volume stays.

        Raises:
            NotFound: RunPod does not know it, and it is not fresh.
            Transient: RunPod does not know it, but may not know it yet.
        """
        try:
            await self._api.delete(instance.id)
        except NotFound as error:
            if self._deletions.accepted(instance.id):
                return
            raise self._fresh.error_for(instance, error) from error
        self._deletions.accept(instance.id)

    async def check(self) -> str:
        """Proof that the key may read. RunPod does not tell whose it is, so this counts what it sees.

        A restricted key may lack each; that it may make pods shows only when it makes one.

        Raises:
            AuthFailed: the key is no good, or may not make some of the calls: the text names each.
        """
        seen: list[Mapping[str, Any]] = []

        async def pods() -> None:
            seen.extend(await self._api.pods("check"))

        reads = [
            Probe("GET /v2/pods", pods),
            Probe("GET /v2/catalog", lambda: self._api.gpu_types(self._settings.clouds[0], 1, "check")),
        ]
        if spot := self._spot:
            cloud = self._settings.clouds[0]
            reads.append(Probe("POST /graphql", lambda: spot.bids(cloud, 1, [ANYWHERE], "check")))
        require_none_missing(RUNPOD, await missing_permissions(reads, _named), "the API key")
        pods_seen = f"{len(seen)} pod{'' if len(seen) == 1 else 's'}"
        return f"an API key that sees {pods_seen}; whether it may make some is told by the first one"

    async def aclose(self) -> None:
        """Close the connections and the threads."""
        await self._api.aclose()
        if self._spot is not None:
            await self._spot.aclose()


def _named(error: AuthFailed, asked: str) -> str:
    """A 403 in RunPod's own words is about this call; anything else about the key or the account."""
    return asked if error.text.startswith("HTTP 403: ") and "no problem document" not in error.text else ""


def create(context: ProviderContext) -> RunpodProvider:
    """Entry point of `meshd.providers`.

    Raises:
        ConfigError: the table cannot be used, one line per problem; or spot is on and RunPod's SDK is not installed.
    """
    settings = parse(RunpodSettings, context.settings, "[providers.runpod]")
    return RunpodProvider(context, settings, RunpodApi(settings), SpotApi(settings) if settings.spot else None)
