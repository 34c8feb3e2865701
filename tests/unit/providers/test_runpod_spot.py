"""Spot pods: bids, the mutation, and errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from graphql import StringValueNode, parse, visit
from graphql.language import Visitor
from hypothesis import given
from hypothesis import strategies as st

from deploy.sandbox.clouds.runpod_graphql import SCHEMA
from meshd.codes import FaultCode
from meshd.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.provider_api import InstanceState, LaunchRequest, Offer, ProviderContext, ProviderName
from providers._settings import parse as parse_settings
from providers.runpod import spot_client
from providers.runpod.errors import to_graphql_error
from providers.runpod.mapping import to_instance
from providers.runpod.names import PodKind
from providers.runpod.provider import create
from providers.runpod.settings import RunpodSettings
from providers.runpod.spot_mapping import Bid, bid_places, bids_query, deploy_mutation, spot_offers, to_bids, to_made
from tests.codes import faulty

H100 = PodKind("NVIDIA H100 80GB HBM3", 8)
ON_DEMAND = Offer(ProviderName("runpod"), "US-KS-2", "", H100.type_name, "h100-sxm", 8, 80, 16, 65536, 23.92)
SPOT = replace(ON_DEMAND, spot=True, usd_per_hour=12.8)
LAUNCH = LaunchRequest("lab-h100-1-abcdef", "lab", SPOT, "#!/bin/sh\n", {"meshd-slot": "h100-1"})


def settings(**table: Any) -> RunpodSettings:
    return parse_settings(RunpodSettings, {"spot": True, **table}, "[providers.runpod]")


def strings_of(query: str) -> list[str]:
    """The strings in a query, as the vendor's parser reads them."""
    found: list[str] = []

    class Strings(Visitor):
        def enter_string_value(self, node: StringValueNode, *_: Any) -> None:
            found.append(node.value)

    visit(parse(query), Strings())
    return found


def problems_of(query: str) -> list[str]:
    from graphql import validate

    return [error.message for error in validate(SCHEMA, parse(query))]


def test_bids_are_asked_for_by_place_in_one_query() -> None:
    query = bids_query("community", 4, ["US-KS-2", "any"])
    assert problems_of(query) == []
    assert 'p0: lowestPrice(input: {gpuCount: 4, secureCloud: false, dataCenterId: "US-KS-2"})' in query
    assert "p1: lowestPrice(input: {gpuCount: 4, secureCloud: false})" in query


def test_places_that_could_break_a_query_are_left_out() -> None:
    offers = [replace(ON_DEMAND, region=region) for region in ("US-KS-2", "any", "US-KS-2", 'X"){', "")]
    assert bid_places(offers) == ["US-KS-2", "any"]


def test_bids() -> None:
    told = [
        {"minimumBidPrice": 1.5, "stockStatus": "High"},
        {"minimumBidPrice": None, "stockStatus": None},
        {"minimumBidPrice": 1.25, "stockStatus": "Plenty"},
    ]
    rows = [{"id": H100.id, **{f"p{n}": row for n, row in enumerate(told)}}, {"id": "NVIDIA A40", "p0": None}]
    bids = to_bids({"gpuTypes": rows}, ["US-KS-2", "US-TX-3", "any"])
    assert bids == {(H100.id, "US-KS-2"): Bid(1.5, True), (H100.id, "any"): Bid(1.25, None)}


@pytest.mark.parametrize(
    ("table", "lowest", "usd_per_gpu_hour"),
    [
        ({}, 1.5, 1.575),
        ({"spot_bid_margin_percent": 0}, 1.5, 1.5),
        ({"spot_max_usd_per_gpu_hour": 1.52}, 1.5, 1.52),
        ({"spot_max_usd_per_gpu_hour": 1.5}, 1.5, 1.5),
        ({"spot_max_usd_per_gpu_hour": 1.4}, 1.5, None),
    ],
)
def test_the_bid(table: dict[str, Any], lowest: float, usd_per_gpu_hour: float | None) -> None:
    offers = spot_offers([ON_DEMAND], {(H100.id, "US-KS-2"): Bid(lowest, True)}, settings(**table))
    assert [offer.usd_per_gpu_hour for offer in offers] == ([] if usd_per_gpu_hour is None else [usd_per_gpu_hour])
    assert all(offer.spot and offer.available and offer.key.endswith("/spot") for offer in offers)


def test_no_offer_without_a_bid() -> None:
    assert spot_offers([ON_DEMAND], {(H100.id, "US-TX-3"): Bid(1.5, True)}, settings()) == []


@pytest.mark.parametrize(
    "table",
    [
        {},
        {
            "registry_id": "reg1",
            "start_ssh": True,
            "min_cuda_version": "12.8",
            "network_volumes": {"US-KS-2": "vol1"},
            "ports": ["22/tcp", "8888/http"],
        },
    ],
    ids=["defaults", "everything"],
)
def test_mutation_fits_the_schema(table: dict[str, Any]) -> None:
    query = deploy_mutation(LAUNCH, H100, settings(**table))
    assert problems_of(query) == []
    assert "bidPerGpu: 1.6," in query
    assert '{key: "MESHD_TAG_SPOT", value: "1"}' in query
    if table:
        for part in ('networkVolumeId: "vol1"', 'ports: "22/tcp,8888/http"', '"12.8", "12.9", "13.0"'):
            assert part in query
        assert '"12.7"' not in query
    else:
        assert "ports:" not in query


@given(st.text(), st.text(min_size=1))
def test_nothing_in_a_value_ends_its_string(value: str, image: str) -> None:
    value, image = (text.encode("utf-8", "replace").decode() for text in (value, image))
    query = deploy_mutation(LAUNCH, H100, settings(env={"HF_HOME": value}, image=image))
    assert {value, image} <= set(strings_of(query))
    assert problems_of(query) == []


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("There are no longer any instances available with the requested specifications.", NoCapacity),
        ("This machine does not have the resources to deploy your pod.", NoCapacity),
        ("Your bid is lower than the minimum bid", NoCapacity),
        ("Your balance is too low. Please add funds.", AuthFailed),
        ("Unauthorized", AuthFailed),
        ("error code: 1010", AuthFailed),
        ("Too Many Requests", RateLimited),
        ("You have reached your spend limit", QuotaExceeded),
        ('Cannot query field "podRentInterruptable" on type "Mutation".', InvalidRequest),
        ("Syntax Error: Expected Name, found <EOF>.", InvalidRequest),
        ("Something went wrong. Please try again later or contact support.", Uncertain),
        ("", Uncertain),
    ],
)
def test_errors_of_a_refused_mutation(words: str, kind: type[ProviderError]) -> None:
    assert type(to_graphql_error(words, operation="launch", changes=True)) is kind


def test_an_unknown_error_of_a_read_is_transient() -> None:
    assert type(to_graphql_error("no capacity", operation="offers", changes=False)) is Transient


def test_a_refusal_does_not_repeat_the_start_command() -> None:
    error = to_graphql_error(f"Syntax Error: {'QUJD' * 20}", operation="launch", changes=True)
    assert "QUJD" not in str(error) + error.vendor_text


def test_a_new_pod() -> None:
    made = to_made({"id": "p1", "costPerHr": 12.8, "machine": {"dataCenterId": "US-TX-3"}}, LAUNCH)
    assert (made.id, made.token, made.region, made.spot) == ("p1", LAUNCH.token, "US-TX-3", True)
    bare = to_made({"id": "p1", "costPerHr": None, "machine": None}, LAUNCH)
    assert (bare.region, bare.usd_per_hour, bare.state) == ("US-KS-2", 12.8, InstanceState.BOOTING)


@pytest.mark.parametrize(
    ("env", "state", "words"),
    [
        ({"MESHD_TAG_SPOT": "1"}, InstanceState.PREEMPTED, "RunPod preempted it"),
        ({}, InstanceState.STOPPED, "the pod is EXITED"),
    ],
)
def test_an_exited_spot_pod_was_preempted(env: dict[str, str], state: InstanceState, words: str) -> None:
    found = to_instance({"id": "p1", "name": "n", "status": "EXITED", "env": env})
    assert found.state is state
    assert words in found.reason


def test_spot_without_the_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_client, "find_spec", lambda name: None)
    context = ProviderContext("lab", {"api_key": "k", "spot": True}, lambda: datetime.now(UTC))
    with faulty(FaultCode.SDK_MISSING):
        create(context)


def test_without_spot_nothing_of_the_sdk_is_loaded() -> None:
    script = (
        "import sys; from datetime import datetime, UTC\n"
        "from meshd.provider_api import ProviderContext\n"
        "from providers.runpod.provider import create\n"
        "create(ProviderContext('lab', {'api_key': 'k'}, lambda: datetime.now(UTC)))\n"
        "assert not {'runpod', 'requests'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=250)


def test_spot_and_global_networking_exclude_each_other() -> None:
    with faulty(FaultCode.BAD_VALUE):
        settings(global_networking=True)
