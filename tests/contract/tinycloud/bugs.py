"""Adapters with one bug each, and the cases that must find it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from meshd.errors import InvalidRequest, NoCapacity, NotFound, ProviderError, RateLimited, Transient, Uncertain
from meshd.provider_api import CLUSTER_TAG, Instance, InstanceState, LaunchRequest
from tinycloud.adapter import TINY, TinyProvider

RANDOM_FAULTS = "nothing_is_lost_or_doubled"


class SendsALostLaunchAgain(TinyProvider):
    found_by = ("unclear_launch_with_effect", "launch_answered_by_any_5xx", RANDOM_FAULTS)

    async def launch(self, request: LaunchRequest) -> Instance:
        try:
            return await super().launch(request)
        except Uncertain:
            return await super().launch(request)


class CallsUncertainTransient(TinyProvider):
    found_by = ("unclear_launch_with_effect", "late_launch", "unclear_terminate_can_be_repeated")

    async def _call(self, *call: Any) -> dict[str, Any]:
        try:
            return await super()._call(*call)
        except Uncertain as error:
            raise Transient(error.text, provider=TINY, operation=error.operation) from None


class ReportsNoMachinesOnAnError(TinyProvider):
    found_by = ("failed_read_is_transient[list", "fails_once", "failed_page", "bad_credential_says_nothing")

    async def list(self) -> Sequence[Instance]:
        with suppress(ProviderError):
            return await super().list()
        return []


class ReadsTheFirstPageOnly(TinyProvider):
    found_by = ("read_to_its_last_page", "failed_page")

    async def list(self) -> Sequence[Instance]:
        page = await self._call("GET", "/machines", "list")
        return [self._instance(row) for row in page["data"] if row["tags"].get(CLUSTER_TAG) == self._cluster]


class HidesMachinesThatEnd(TinyProvider):
    found_by = ("terminate_that_never_ends",)

    async def list(self) -> Sequence[Instance]:
        return [one for one in await super().list() if one.state is not InstanceState.TERMINATING]


class ListsOtherClustersMachines(TinyProvider):
    found_by = ("only_this_cluster", "name_alone_does_not_make_a_machine_ours")

    async def list(self) -> Sequence[Instance]:
        return [self._instance(row) for row in (await self._call("GET", "/machines", "list"))["data"]]


class MapsAnUnknownStateToGone(TinyProvider):
    found_by = ("unknown_state_is_unknown", RANDOM_FAULTS)

    def _instance(self, *row: Any) -> Instance:
        found = super()._instance(*row)
        return replace(found, state=InstanceState.GONE) if found.state is InstanceState.UNKNOWN else found


class CallsANewMachineGone(TinyProvider):
    found_by = ("new_machine_not_found_is_not_called", RANDOM_FAULTS)

    def _not_found(self, instance: Instance, error: NotFound) -> ProviderError:
        return error


class RejectsTerminateOfAGoneMachine(TinyProvider):
    found_by = ("terminate_of_a_forgotten",)

    async def terminate(self, instance: Instance) -> None:
        try:
            await super().terminate(instance)
        except NotFound as error:
            raise InvalidRequest(error.text, provider=TINY, operation="terminate") from None


class NeverEndsAnything(TinyProvider):
    found_by = ("terminate_is_accepted", "terminate_of_a_booting", "terminate_can_be_repeated", RANDOM_FAULTS)

    async def terminate(self, instance: Instance) -> None:
        return


class MapsNoCapacityToTransient(TinyProvider):
    found_by = ("refused_launch[no_capacity]", "full_region")

    async def launch(self, request: LaunchRequest) -> Instance:
        try:
            return await super().launch(request)
        except NoCapacity as error:
            raise Transient(error.text, provider=TINY, operation="launch") from None


class DropsRetryAfter(TinyProvider):
    found_by = ("rate_limit_has_the_clouds_retry_after",)

    async def _call(self, *call: Any) -> dict[str, Any]:
        try:
            return await super()._call(*call)
        except RateLimited as error:
            raise RateLimited(error.text, provider=TINY, operation=error.operation) from None


class TrimsUserData(TinyProvider):
    found_by = ("gets_the_user_data_unchanged",)

    async def launch(self, request: LaunchRequest) -> Instance:
        return await super().launch(replace(request, user_data=request.user_data.strip()))


class PutsUserDataIntoErrors(TinyProvider):
    found_by = ("no_secret_in_errors",)

    async def launch(self, request: LaunchRequest) -> Instance:
        try:
            return await super().launch(request)
        except ProviderError as error:
            raise type(error)(f"{error.text}: {request.user_data}", provider=TINY, operation="launch") from None


BUGS: tuple[type[TinyProvider], ...] = tuple(TinyProvider.__subclasses__())
