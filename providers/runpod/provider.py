"""The RunPod adapter: glue between the contract and the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from meshd.errors import AuthFailed, InvalidRequest, NotFound
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
from providers._permissions import Probe, missing_permissions, require_none_missing
from providers._reads import all_of
from providers._settings import parse
from providers.runpod.billed import billed_machine, billed_volume
from providers.runpod.brochure import capabilities
from providers.runpod.client import RunpodApi
from providers.runpod.errors import RUNPOD
from providers.runpod.mapping import ANYWHERE, launch_body, to_instance
from providers.runpod.names import PodKind, is_ours, parse_type
from providers.runpod.offers import cpu_offers, cpu_queries, gpu_offers, gpu_queries
from providers.runpod.settings import RunpodSettings
from providers.runpod.spot_client import SpotApi
from providers.runpod.spot_mapping import bid_places, spot_offers

DELETIONS_KEPT = timedelta(hours=1)


class AcceptedDeletions:
    """Records for an hour which deletions RunPod accepted.

    RunPod has no state for a pod that is ending, and forgets a pod when it is deleted.

    Args:
        now: UTC clock.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._accepted_at: dict[InstanceId, datetime] = {}

    def accept(self, instance_id: InstanceId) -> None:
        """Record that RunPod accepted the deletion now."""
        now = self._now()
        kept = {known: at for known, at in self._accepted_at.items() if now - at < DELETIONS_KEPT}
        self._accepted_at = {**kept, instance_id: now}

    def accepted(self, instance_id: InstanceId) -> bool:
        """Whether a deletion was accepted within the last hour."""
        at = self._accepted_at.get(instance_id)
        return at is not None and self._now() - at < DELETIONS_KEPT

    def corrected(self, instance: Instance) -> Instance:
        """The instance, as TERMINATING when it still exists although its deletion was accepted."""
        if instance.state is InstanceState.GONE or not self.accepted(instance.id):
            return instance
        return replace(instance, state=InstanceState.TERMINATING, reason="its deletion was accepted")


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
        """Containers without TUN device and systemd; spot when the settings allow it.

        Machines of unclear launches are found by name. Tags are environment variables of the container. A container
        that ends leaves a stopped pod, whose disk still costs money. API and console show the start command, which
        contains the user data, to everybody in the account.
        """
        return capabilities(self._settings)

    async def offers(self) -> Sequence[Offer]:
        """Pods by data centre, with current prices. RunPod's stock is a hint: a create may still be refused."""
        answers = await all_of(
            [
                *(self._gpus(cloud, count) for cloud, count in gpu_queries(self._settings)),
                *(self._cpus(vcpus) for vcpus in cpu_queries(self._settings)),
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
        """Create one pod, with its token as name, whose start command runs the user data.

        RunPod has no idempotency token: after Uncertain, the caller looks for the name in a list before it tries again.
        """
        kind = parse_type(request.offer.instance_type)
        if kind is None:
            text = f"{request.offer.instance_type!r} is not a type of this adapter"
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
            text = "CPU pods can only be rented on demand" if self._spot else "[providers.runpod] spot is false"
            raise InvalidRequest(text, provider=RUNPOD, operation="launch")
        return await self._spot.rent(request, kind)

    async def get(self, instance: Instance) -> Instance:
        """The pod by its id.

        Raises:
            NotFound: RunPod does not know the pod, and it is not new.
            Transient: RunPod does not know the pod yet.
        """
        try:
            return self._deletions.corrected(to_instance(await self._api.pod(instance.id)))
        except NotFound as error:
            if self._deletions.accepted(instance.id):
                return replace(instance, state=InstanceState.GONE, reason="deleted", vendor_state="")
            raise self._fresh.error_for(instance, error) from error

    async def list(self) -> Sequence[Instance]:
        """The account's pods that belong to this cluster, by tag or by the form of the name."""
        pods = [pod for pod in await self._api.pods() if is_ours(pod, self._cluster)]
        instances = [self._deletions.corrected(to_instance(pod)) for pod in pods]
        for instance in instances:
            self._fresh.see(instance.id)
        return instances

    async def terminate(self, instance: Instance) -> None:
        """Delete the pod and its disk. A network volume stays.

        Raises:
            NotFound: RunPod does not know the pod, and it is not new.
            Transient: RunPod does not know the pod yet.
        """
        try:
            await self._api.delete(instance.id)
        except NotFound as error:
            if self._deletions.accepted(instance.id):
                return
            raise self._fresh.error_for(instance, error) from error
        self._deletions.accept(instance.id)

    async def billed(self) -> Sequence[BilledListing]:
        """Pods and network volumes. meshd makes no template and no registry."""
        return await all_of(
            [
                listing(RUNPOD, BilledKind.MACHINE, each(self._api.pods("billed"), billed_machine)),
                listing(RUNPOD, BilledKind.VOLUME, each(self._api.network_volumes(), billed_volume)),
            ]
        )

    async def check(self) -> str:
        """Check that the key may read. RunPod does not say whose it is, so the text has the number of pods.

        A restricted key may lack each permission. Only a create shows whether the key may create pods.

        Raises:
            AuthFailed: the key is invalid, or may not make some of the calls; the text names each.
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
        return f"an API key that sees {pods_seen}; only a launch shows whether it may create pods"

    async def aclose(self) -> None:
        """Close the connections and stop the threads."""
        await self._api.aclose()
        if self._spot is not None:
            await self._spot.aclose()


def _named(error: AuthFailed, asked: str) -> str:
    """A 403 with a problem document is about this call; any other refusal is about the key or the account."""
    return asked if error.text.startswith("HTTP 403: ") and "no problem document" not in error.text else ""


def create(context: ProviderContext) -> RunpodProvider:
    """Entry point of `meshd.providers`.

    Raises:
        ConfigError: the table is invalid, one line per problem; or spot is true and RunPod's SDK is not installed.
    """
    settings = parse(RunpodSettings, context.settings, "[providers.runpod]")
    return RunpodProvider(context, settings, RunpodApi(settings), SpotApi(settings) if settings.spot else None)
