"""Paperspace's machines, offers, scripts and errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.codes import FaultCode
from meshd.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Uncertain,
)
from meshd.gpus import normalise
from meshd.model.ids import UNIQUE_ALPHABET, UNIQUE_LENGTH, machine_name, slot_name
from meshd.provider_api import Instance, InstanceId, InstanceState, LaunchRequest, Offer, PriceSource, ProviderName
from providers._answers import Answer, utc_time
from providers._settings import parse
from providers.paperspace.errors import NotDeletable, refusal_kind, to_error
from providers.paperspace.mapping import (
    deletion,
    failed_create,
    is_ours,
    launch_body,
    region_code,
    stale_scripts,
    to_instance,
    to_state,
    why_gone,
)
from providers.paperspace.offers import candidates, shipped, template_for, wanted_template
from providers.paperspace.settings import PaperspaceSettings
from tests.codes import faulty

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAPERSPACE = ProviderName("paperspace")
OFFER = Offer(PAPERSPACE, "ny2", "", "H100", "h100-sxm", 1, 80, 16, 256000, 5.95)
LATE = "We are currently out of capacity for the selected VM type. Try again in a few minutes."


@pytest.mark.parametrize(
    ("status", "code", "message", "operation", "kind"),
    [
        (400, "BAD_REQUEST", LATE, "launch", NoCapacity),
        (500, "INTERNAL_SERVER_ERROR", LATE, "launch", NoCapacity),
        (412, "PRECONDITION_FAILED", "Not enough capacity in NY2", "launch", NoCapacity),
        (400, "BAD_REQUEST", "You have reached your machine limit", "launch", QuotaExceeded),
        (403, "FORBIDDEN", "You have exceeded your quota for H100", "launch", QuotaExceeded),
        (403, "FORBIDDEN", "This machine type requires approval", "launch", QuotaExceeded),
        (402, "", "", "launch", AuthFailed),
        (402, "", "Payment required", "launch", AuthFailed),
        (403, "FORBIDDEN", "Add a credit card to continue", "launch", AuthFailed),
        (400, "BAD_REQUEST", "Your account is suspended", "launch", AuthFailed),
        (401, "UNAUTHORIZED", "You must be logged in to access this method.", "list", AuthFailed),
        (403, "FORBIDDEN", "No access", "launch", AuthFailed),
        (403, "", "", "list", AuthFailed),
        (429, "TOO_MANY_REQUESTS", "Rate limit exceeded", "launch", RateLimited),
        (429, "", "", "list", RateLimited),
        (400, "TOO_MANY_REQUESTS", "", "list", RateLimited),
        (404, "NOT_FOUND", "Machine not found", "get", NotFound),
        (404, "NOT_FOUND", "Machine not found", "terminate", NotFound),
        (404, "NOT_FOUND", "Template not found", "launch", InvalidRequest),
        (404, "", "", "get", Transient),
        (400, "BAD_REQUEST", "Input validation failed", "launch", InvalidRequest),
        (400, "PARSE_ERROR", "", "launch", InvalidRequest),
        (405, "METHOD_NOT_SUPPORTED", "", "list", InvalidRequest),
        (413, "PAYLOAD_TOO_LARGE", "", "launch", InvalidRequest),
        (412, "PRECONDITION_FAILED", "no", "launch", InvalidRequest),
        (409, "CONFLICT", "", "launch", Transient),
        (409, "CONFLICT", "", "terminate", NotDeletable),
        (412, "PRECONDITION_FAILED", "The machine must be off", "terminate", NotDeletable),
        (400, "BAD_REQUEST", "The machine must be off", "terminate", NotDeletable),
        (408, "TIMEOUT", "", "launch", Uncertain),
        (408, "TIMEOUT", "", "list", Transient),
        (499, "CLIENT_CLOSED_REQUEST", "", "launch", Uncertain),
        (500, "INTERNAL_SERVER_ERROR", "Something broke", "launch", Uncertain),
        (500, "INTERNAL_SERVER_ERROR", "quota service is down", "launch", Uncertain),
        (500, "INTERNAL_SERVER_ERROR", "", "list", Transient),
        (502, "", "", "terminate", Uncertain),
        (418, "", "", "launch", Uncertain),
        (422, "NEW_CODE", "", "launch", InvalidRequest),
    ],
)
def test_errors(status: int, code: str, message: str, operation: str, kind: type[ProviderError]) -> None:
    body = {**({"code": code} if code else {}), **({"message": message} if message else {})}
    error = to_error(Answer(status, body, "", None), operation=operation, changes=operation in ("launch", "terminate"))
    assert type(error) is kind
    assert (error.provider, error.operation) == ("paperspace", operation)


def test_errors_keep_the_vendors_words_and_nothing_that_was_sent() -> None:
    body = {"code": "BAD_REQUEST", "message": "Input validation failed", "issues": [{"received": "tskey-secret"}]}
    error = to_error(Answer(400, body, str(body), None), operation="launch", changes=True)
    assert error.vendor_text == "BAD_REQUEST: Input validation failed"
    assert "tskey" not in str(error)


@pytest.mark.parametrize("body", [None, [], "text", {"code": None}, {"message": 5}, {}])
def test_odd_bodies(body: Any) -> None:
    assert type(to_error(Answer(502, body, "", None), operation="launch", changes=True)) is Uncertain
    assert type(to_error(Answer(502, body, "", None), operation="list", changes=False)) is Transient


@pytest.mark.parametrize("words", ["", "Input validation failed", "Machine not found", "The region is unlimited"])
def test_messages_without_capacity_or_quota(words: str) -> None:
    assert refusal_kind(words) is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("provisioning", InstanceState.BOOTING),
        ("starting", InstanceState.BOOTING),
        ("restarting", InstanceState.BOOTING),
        ("upgrading", InstanceState.BOOTING),
        ("serviceready", InstanceState.RUNNING),
        ("ready", InstanceState.RUNNING),
        ("stopping", InstanceState.STOPPING),
        ("off", InstanceState.STOPPED),
        ("hibernating", InstanceState.UNKNOWN),
        ("", InstanceState.UNKNOWN),
    ],
)
def test_states(state: str, expected: InstanceState) -> None:
    assert to_state(state) is expected


@given(st.text())
def test_no_state_string_means_gone(state: str) -> None:
    assert to_state(state) is not InstanceState.GONE


def test_deleted_machine_is_gone_whatever_its_state() -> None:
    raw = {"id": "ps1", "state": "ready", "dtDeleted": "2026-01-01T00:00:00.000Z"}
    assert to_instance(raw).state is InstanceState.GONE


def test_sparse_machine() -> None:
    found = to_instance({"id": "ps1", "publicIp": None, "region": None, "usageRate": 0, "dtCreated": "soon"})
    assert (found.public_ip, found.region, found.usd_per_hour, found.launched_at) == ("", "", None, None)


@pytest.mark.parametrize("text", ["ny2", "NY2", "East Coast (NY2)", " east coast (ny2) "])
def test_region_codes(text: str) -> None:
    assert region_code(text) == "ny2"


@pytest.mark.parametrize(
    ("text", "code"), [("Europe (AMS1)", "ams1"), ("West Coast (CA1)", "ca1"), ("", ""), ("?", "?")]
)
def test_other_regions(text: str, code: str) -> None:
    assert region_code(text) == code


def test_times() -> None:
    assert utc_time("2026-01-01T00:00:00.000Z") == NOW
    assert utc_time("2026-01-01T00:00:00") == NOW
    assert utc_time(None) is utc_time("yesterday") is None


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("lab-a100-3-k7q2mz", True),
        ("lab-big-gpus-12-abcdef", True),
        ("lab", False),
        ("lab-notes", False),
        ("lab-ubuntu-22-04", False),
        ("lab-3-k7q2mz", False),
        ("lab-a100-3-abc", False),
        ("lab-a100-3-olo101", False),
        ("lab-h100", False),
        ("mylab-a100-3-k7q2mz", False),
        ("labs-a100-3-k7q2mz", False),
        ("lab-a100-3-k7q2mz copy", False),
        ("LAB-a100-3-k7q2mz", False),
    ],
)
def test_names(name: str, ours: bool) -> None:
    assert is_ours(name, "lab") is ours


@given(
    st.from_regex(r"[a-z][a-z0-9-]{0,10}[a-z0-9]", fullmatch=True),
    st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
    st.integers(1, 9999),
    st.text(UNIQUE_ALPHABET, min_size=UNIQUE_LENGTH, max_size=UNIQUE_LENGTH),
)
def test_every_name_that_meshd_gives_is_ours(cluster: str, pool: str, index: int, unique: str) -> None:
    assert is_ours(machine_name(cluster, slot_name(pool, index), unique), cluster)


def event(name: str, state: str, error: str | None = None, at: str = "2026-01-01T00:00:00.000Z") -> dict[str, Any]:
    return {"id": "e", "name": name, "state": state, "machineId": "ps1", "error": error, "dtCreated": at}


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], ""),
        ([event("create", "in progress")], ""),
        ([event("create", "done"), event("stop", "error", "x")], ""),
        ([event("create", "error", LATE)], f"create: {LATE}"),
        ([event("create", "cancelled")], "create: cancelled"),
        ([event("deactivate", "in progress"), event("create", "done")], "deactivate: in progress"),
        ([event("deactivate", "error", "busy"), event("create", "done")], ""),
    ],
)
def test_why_a_machine_is_gone(events: list[dict[str, Any]], why: str) -> None:
    assert why_gone(events) == why


def test_newest_deletion_counts() -> None:
    old = event("deactivate", "error", "busy", "2026-01-01T00:00:00.000Z")
    new = event("deactivate", "in progress", None, "2026-01-01T00:01:00.000Z")
    assert deletion([old, new]) == deletion([new, old]) == "in progress"
    assert failed_create([old, new]) == ""


def script(name: str, age_s: float, machines: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    created = (NOW - timedelta(seconds=age_s)).isoformat().replace("+00:00", "Z")
    return {"id": "ss1", "name": name, "assignedMachineIds": machines, "dtCreated": created, "dtDeleted": None, **more}


def machine(state: InstanceState, token: str = "lab-a-1-abcdef", machine_id: str = "ps1") -> Instance:
    return Instance(PAPERSPACE, InstanceId(machine_id), token, state)


RUNNING, BOOTING = InstanceState.RUNNING, InstanceState.BOOTING


@pytest.mark.parametrize(
    ("found", "machines", "up_s", "stale"),
    [
        (script("lab-a-1-abcdef", 30), [], None, False),
        (script("lab-a-1-abcdef", 600), [], None, True),
        (script("lab-a-1-abcdef", 1000), [machine(BOOTING)], None, False),
        (script("lab-a-1-abcdef", 3600), [machine(BOOTING)], None, True),
        (script("lab-a-1-abcdef", 1000), [machine(RUNNING)], 299, False),
        (script("lab-a-1-abcdef", 1000), [machine(RUNNING)], 300, True),
        (script("lab-a-1-abcdef", 10), [machine(InstanceState.TERMINATING)], None, True),
        (script("lab-a-1-abcdef", 10), [machine(InstanceState.FAILED)], None, True),
        (script("lab-a-1-abcdef", 1000), [machine(RUNNING), machine(BOOTING, machine_id="ps2")], 300, False),
        (script("lab-a-1-abcdef", 1000, ("ps1",)), [machine(BOOTING, "lab-b-1-abcdef")], None, False),
        (script("lab-a-1-abcdef", 1000), [machine(RUNNING, "lab-b-1-abcdef")], 300, True),
        (script("my-script", 90000), [], None, False),
        (script("other-a-1-abcdef", 90000), [], None, False),
        (script("lab-a-1-abcdef", 90000, dtDeleted="2026-01-01T00:00:00Z"), [], None, False),
        (script("lab-a-1-abcdef", 0, dtCreated="?"), [], None, True),
    ],
)
def test_stale_scripts(found: dict[str, Any], machines: list[Instance], up_s: float | None, stale: bool) -> None:
    up = {} if up_s is None else {InstanceId("ps1"): NOW - timedelta(seconds=up_s)}
    ids = stale_scripts(
        [found],
        machines,
        cluster="lab",
        up_since=up,
        first_seen={"ss1": NOW - timedelta(seconds=700)},
        now=NOW,
        settings=PaperspaceSettings(),
    )
    assert ids == (["ss1"] if stale else [])


def template(name: str, label: str = "H100", created: str = "2025", **more: Any) -> dict[str, Any]:
    types = [{"machineTypeLabel": label, "isAvailable": True}]
    system = {"agentType": "LinuxHeadless", "operatingSystemLabel": name, "defaultSizeGb": None}
    return (
        {"id": f"t-{name}-{created}", "name": name, "dtCreated": created, "availableMachineTypes": types}
        | system
        | more
    )


TEMPLATES = [
    template("Windows 10"),
    template("Ubuntu 22.04"),
    template("ML-in-a-Box Ubuntu 22.04", created="2024"),
    template("ML-in-a-Box Ubuntu 22.04", created="2025"),
    template("ML-in-a-Box Ubuntu 24.04", label="A4000"),
]


def choose(label: str, **settings: Any) -> str | None:
    found = template_for(label, gpus=1, templates=TEMPLATES, settings=PaperspaceSettings(**settings))
    return None if found is None else str(found["id"])


def test_template_is_the_newest_of_the_first_name_that_fits() -> None:
    assert choose("H100") == choose("h100") == "t-ML-in-a-Box Ubuntu 22.04-2025"
    assert choose("H100", templates=["nothing", "ubuntu*"]) == "t-Ubuntu 22.04-2025"
    assert choose("H100", templates=["*"]) != "t-Windows 10-2025"
    assert choose("V100") is None
    assert choose("V100", template_ids={"V100": "tmine"}) == "tmine"


def test_template_that_is_not_available_for_the_type_is_not_taken() -> None:
    off = template("ML-in-a-Box", availableMachineTypes=[{"machineTypeLabel": "H100", "isAvailable": False}])
    assert template_for("H100", gpus=1, templates=[off], settings=PaperspaceSettings()) is None
    with pytest.raises(InvalidRequest, match="template_ids"):
        wanted_template(OFFER, [off], PaperspaceSettings())


def test_prices_of_the_settings_come_first() -> None:
    settings = PaperspaceSettings(machine_types=["H100"], prices={"h100": 2.24})
    (offer,) = candidates(shipped(), TEMPLATES, settings)
    assert (offer.usd_per_hour, offer.region, offer.available) == (2.24, "ny2", None)
    assert (offer.price_as_of, offer.price_source) == (None, PriceSource.SETTINGS)
    (offer,) = candidates(shipped(), TEMPLATES, PaperspaceSettings(machine_types=["H100"]))
    assert (offer.price_as_of, offer.price_source) == (shipped().as_of, PriceSource.SHIPPED)


def test_offers_keep_to_the_settings_types_and_regions() -> None:
    offers = candidates(shipped(), TEMPLATES, PaperspaceSettings(machine_types=["a4*"], regions=["AMS1"]))
    assert [(offer.instance_type, offer.region) for offer in offers] == [("A4000", "ams1")]


def test_shipped_types() -> None:
    table = shipped()
    assert table.as_of.tzinfo is not None
    for key, kind in table.types.items():
        assert key == kind.label.lower()
        assert kind.usd_per_hour > 0 and kind.vcpus > 0 and kind.memory_gib > 0 and kind.regions
        assert bool(kind.gpu) == bool(kind.gpus) == bool(kind.gpu_memory_gib)
        assert normalise(kind.gpu) == kind.gpu


def test_launch_body() -> None:
    launch = LaunchRequest("lab-h100-1-abcdef", "lab", OFFER, "#!/bin/sh # secret", {"meshd-pool": "h100"})
    settings = PaperspaceSettings(network_ids={"NY2": "nmine"}, disk_gb=50)
    body = launch_body(launch, settings, {"id": "t1", "defaultSizeGb": 100}, "ss1")
    assert (body["name"], body["diskSize"], body["networkId"]) == ("lab-h100-1-abcdef", 100, "nmine")
    assert (body["startupScriptId"], body["templateId"], "enableNvlink" in body) == ("ss1", "t1", False)
    assert "secret" not in str(body)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"regions": []}, ("regions",)),
        ({"prices": {"H100": -1}}, ("prices", "H100")),
        ({"disk_gb": 10}, ("disk_gb",)),
        ({"base_url": "api.paperspace.com"}, ("base_url",)),
        ({"api_key": "k", "api_key_file": "/f"}, ()),
    ],
)
def test_settings_are_refused_with_the_key(table: dict[str, Any], key: tuple[str, ...]) -> None:
    with faulty(FaultCode.BAD_VALUE) as caught:
        parse(PaperspaceSettings, table, "[providers.paperspace]")
    (fault,) = caught.value.faults
    assert fault.key == ("providers", "paperspace", *key)
