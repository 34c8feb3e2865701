"""The Lambda adapter: glue between the contract and the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshd.errors import NotFound, Transient
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
from providers.lambda_cloud.billed import billed_machine, billed_volume
from providers.lambda_cloud.brochure import capabilities
from providers.lambda_cloud.client import LambdaApi
from providers.lambda_cloud.errors import LAMBDA
from providers.lambda_cloud.mapping import is_ours, launch_body, only_key, terminate_blocked, to_instance, to_state
from providers.lambda_cloud.offers import to_offers
from providers.lambda_cloud.settings import LambdaSettings

SSH_KEYS_TTL_S = 600.0
ENDING = frozenset({InstanceState.TERMINATING, InstanceState.GONE})


class LambdaProvider:
    """Lambda Cloud behind the contract `meshd.provider_api.Provider`."""

    def __init__(self, context: ProviderContext, settings: LambdaSettings, api: LambdaApi) -> None:
        self._cluster = context.cluster
        self._settings = settings
        self._api = api
        self._now = context.now
        self._ssh_keys: ReadCache[str, str] = ReadCache(context.now, SSH_KEYS_TTL_S)
        self._fresh = Freshness(context.now, settings.fresh_s)

    @property
    def name(self) -> ProviderName:
        """Always "lambda"."""
        return LAMBDA

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Virtual machines, on demand only. Machines of unclear launches are found by tag. An off machine costs money.

        The API does not return user data, but Lambda does not say that other processes on the machine cannot read it.
        """
        return capabilities(self._settings)

    async def offers(self) -> Sequence[Offer]:
        """Types by region, with current prices and whether there is capacity."""
        return to_offers(await self._api.instance_types(), self._settings, self._now())

    async def launch(self, request: LaunchRequest) -> Instance:
        """Launch one machine, with its token as name and tag.

        Lambda has no idempotency token: after Uncertain, the caller looks for the name in a list before it tries again.
        """
        ssh_key_name = self._settings.ssh_key_name or await self._ssh_keys.get("", self._only_ssh_key)
        instance_id = await self._api.launch(launch_body(request, self._settings, ssh_key_name))
        self._fresh.see(InstanceId(instance_id))
        return Instance(
            provider=LAMBDA,
            id=InstanceId(instance_id),
            token=request.token,
            state=InstanceState.BOOTING,
            region=request.offer.region,
            instance_type=request.offer.instance_type,
            launched_at=self._now(),
            usd_per_hour=request.offer.usd_per_hour,
        )

    async def _only_ssh_key(self) -> str:
        return only_key(await self._api.ssh_keys())

    async def get(self, instance: Instance) -> Instance:
        """The machine by its id.

        Raises:
            NotFound: Lambda does not know the machine, and it is not new.
            Transient: Lambda does not know the machine yet.
        """
        return to_instance(await self._raw(instance, "get"))

    async def _raw(self, instance: Instance, operation: str) -> Mapping[str, Any]:
        try:
            return await self._api.instance(instance.id, operation)
        except NotFound as error:
            raise self._fresh.error_for(instance, error) from error

    async def list(self) -> Sequence[Instance]:
        """The account's machines with this cluster's tag."""
        instances = [to_instance(raw) for raw in await self._api.instances() if is_ours(raw, self._cluster)]
        for instance in instances:
            self._fresh.see(instance.id)
        return instances

    async def terminate(self, instance: Instance) -> None:
        """End the machine, unless it is ending: Lambda answers a second request with an unknown error.

        Raises:
            Transient: the machine cannot be ended now, e.g. because it has not booted yet.
        """
        raw = await self._raw(instance, "terminate")
        if to_state(str(raw.get("status", ""))) in ENDING:
            return
        blocked = terminate_blocked(raw)
        if blocked == "vm-is-terminating":
            return
        if blocked:
            raise Transient(f"cannot be terminated now: {blocked}", provider=LAMBDA, operation="terminate")
        await self._api.terminate(instance.id)

    async def billed(self) -> Sequence[BilledListing]:
        """Instances and file systems. Lambda has no addresses, snapshots or startup scripts to be listed."""
        return await all_of(
            [
                listing(LAMBDA, BilledKind.MACHINE, each(self._api.instances("billed"), billed_machine)),
                listing(LAMBDA, BilledKind.VOLUME, each(self._api.file_systems(), billed_volume)),
            ]
        )

    async def check(self) -> str:
        """Check that the key is valid and that there is an SSH key, which Lambda needs for a launch.

        Lambda does not say whose the key is, so the text has the number of machines. Keys have no permissions.

        Raises:
            InvalidRequest: there is no SSH key, or several and the settings name none.
        """
        machines = await self._api.instances("check")
        if not self._settings.ssh_key_name:
            only_key(await self._api.ssh_keys("check"), "check")
        seen = f"{len(machines)} machine{'' if len(machines) == 1 else 's'}"
        return f"an API key that sees {seen}; it may do what its account may"

    async def aclose(self) -> None:
        """Close the connections."""
        await self._api.aclose()


def create(context: ProviderContext) -> LambdaProvider:
    """Entry point of `meshd.providers`.

    Raises:
        ConfigError: the table is invalid; one line per problem.
    """
    settings = parse(LambdaSettings, context.settings, "[providers.lambda]")
    return LambdaProvider(context, settings, LambdaApi(settings))
