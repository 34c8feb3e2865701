"""Missing permissions in the vendors' messages, and the needed permissions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshd.errors import AuthFailed, Transient
from meshd.provider_api import ProviderName
from providers._answers import ErrorAnswer
from providers._permissions import Probe, missing_permissions, require_none_missing
from providers.aws.errors import decoded, encoded_in, is_denial, missing_in, to_error, without_code
from providers.gce.check import ALWAYS, OPTIONAL, needed
from providers.gce.check import missing_in as missing_in_gce
from providers.gce.settings import GceSettings

DOCS = Path(__file__).resolve().parents[3] / "docs"
NEW = (
    "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/meshd is not authorized to "
    "perform: ec2:DescribeImages because no identity-based policy allows the ec2:DescribeImages action"
)
ROLE = (
    "You are not authorized to perform this operation. User: arn:aws:iam::1:user/m is not authorized to perform: "
    "iam:PassRole on resource: arn:aws:iam::1:role/node because no identity-based policy allows the iam:PassRole action"
)
OLD = "You are not authorized to perform this operation. Encoded authorization failure message: rGk2nN-_x9=="


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        (NEW, "ec2:DescribeImages"),
        (ROLE, "iam:PassRole on arn:aws:iam::1:role/node"),
        (OLD, "ec2:RunInstances"),
        ("", "ec2:RunInstances"),
    ],
)
def test_the_action_that_is_missing(message: str, missing: str) -> None:
    assert missing_in(f"UnauthorizedOperation: {message}", "ec2:RunInstances") == missing


def test_the_encoded_part_is_removed() -> None:
    assert encoded_in(OLD) == "rGk2nN-_x9=="
    assert encoded_in(NEW) == ""
    assert without_code(OLD) == "You are not authorized to perform this operation."
    error = to_error(ErrorAnswer("UnauthorizedOperation", 403, OLD), operation="launch", changes=True)
    assert isinstance(error, AuthFailed)
    assert "rGk2nN" not in error.text + error.vendor_text


def test_the_decoded_part() -> None:
    told = {"allowed": False, "explicitDeny": True, "context": {"action": "ec2:CreateTags", "resource": "arn:aws:x"}}
    words = decoded(json.dumps(told))
    assert words == "not authorized to perform: ec2:CreateTags on resource: arn:aws:x because of an explicit deny"
    assert missing_in(words, "ec2:RunInstances") == "ec2:CreateTags on arn:aws:x"


@pytest.mark.parametrize("told", ["", "no JSON", "[]", "{}", '{"context": {}}', "null"])
def test_an_unexpected_answer_decodes_to_nothing(told: str) -> None:
    assert decoded(told) == ""


def test_a_bad_key_is_not_a_missing_permission() -> None:
    assert is_denial("UnauthorizedOperation: no")
    assert is_denial("AccessDenied: no")
    assert not any(is_denial(f"{code}: no") for code in ("AuthFailure", "ExpiredToken", "OptInRequired"))


def test_the_permission_that_google_names() -> None:
    assert missing_in_gce("forbidden: Required 'compute.instances.list' permission for 'projects/p'") == (
        "compute.instances.list"
    )
    assert missing_in_gce("accessNotConfigured: Compute Engine API has not been used in project 1 before") == ""


def test_the_role_for_google_has_what_is_needed() -> None:
    block = re.search(r"^```yaml\ntitle: meshd\n(.*?)^```", (DOCS / "providers.md").read_text(), re.M | re.S)
    assert block
    role = set(re.findall(r"- (compute\.\S+)", block[1]))
    everything = GceSettings(attached_gpus=("n1-standard-8+nvidia-tesla-t4x1",), network_tags=("mesh",))
    assert set(needed(everything, "p")) | OPTIONAL.keys() == role
    assert set(needed(GceSettings(public_ip=False), "p")) == {*ALWAYS, "compute.subnetworks.use"}
    with_account = GceSettings(machine_service_account="a@b")
    assert "compute.instances.setServiceAccount" in needed(with_account, "p")


def test_a_shared_network_is_granted_elsewhere() -> None:
    for shared in (
        GceSettings(network="projects/host/global/networks/n"),
        GceSettings(subnetworks={"us-central1": "projects/host/regions/us-central1/subnetworks/s"}),
    ):
        assert not any("subnetworks" in permission for permission in needed(shared, "own"))
        assert any("subnetworks" in permission for permission in needed(shared, "host"))


async def test_missing_permissions() -> None:
    def refuse(error: Exception | None) -> Probe:
        async def call() -> None:
            if error is not None:
                raise error

        return Probe(f"p:{error}", call)

    def named(error: AuthFailed, asked: str) -> str:
        return "" if "key" in error.text else asked

    probes = [refuse(None), refuse(AuthFailed("b")), refuse(AuthFailed("a")), refuse(AuthFailed("a"))]
    assert await missing_permissions(probes, named) == ["p:a", "p:b"]
    for error in (Transient("down"), AuthFailed("bad key")):
        with pytest.raises(type(error)):
            await missing_permissions([*probes, refuse(error)], named)


def test_one_error_names_all_missing_permissions() -> None:
    require_none_missing(ProviderName("p"), [], "me")
    with pytest.raises(AuthFailed, match=r"\bme\b.*\ba, b\b.*\bc\b"):
        require_none_missing(ProviderName("p"), ["b", "a", "b"], "me", ["and c was not tried"])
