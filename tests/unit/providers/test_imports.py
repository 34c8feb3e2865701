"""Only enabled adapters are imported, and only the used parts of Google's SDK: it saves seconds and 100 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

HEAVY = (
    "boto3",
    "botocore",
    "google.cloud.compute_v1.types",
    "google.auth",
    "google.api_core",
    "grpc",
    "requests",
    "runpod",
)
SCRIPT = """
import json, os, sys
from datetime import UTC, datetime
import meshd.daemon.main
from meshd.config import Settings
from meshd.daemon.providers.registry import load_providers
for tables in json.loads(sys.argv[1]):
    if os.fork() == 0:
        found = load_providers(Settings(providers=tables), lambda: datetime.now(UTC), lambda _: None)
        print(json.dumps({"enabled": sorted(found), "modules": sorted(sys.modules)}), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
"""One daemon after the other with these providers. Each is a fork, so that what all of them need is imported once."""

Tables = Mapping[str, Mapping[str, object]]
NONE: Tables = {}
WITHOUT_SDK: Tables = {name: {"api_key": "k"} for name in ("lambda", "paperspace", "runpod")}
AWS: Tables = {"aws": {"regions": ["us-east-1"]}}
GCE: Tables = {"gce": {"api_endpoint": "http://127.0.0.1:9", "anonymous": True, "project": "lab-1"}}
ALL = (NONE, WITHOUT_SDK, AWS, GCE)

Imported = Callable[[Tables], set[str]]


@pytest.fixture(scope="module")
def imported() -> Imported:
    """The large packages and adapters that a daemon with some providers imports before any call."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps(ALL)], capture_output=True, text=True, check=False,
        timeout=250, cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["enabled"] for one in told] == [sorted(tables) for tables in ALL]

    def of(tables: Tables) -> set[str]:
        modules = set(told[ALL.index(tables)]["modules"])
        adapters = {name for name in modules if name.startswith("providers.") and name.endswith(".provider")}
        return modules & set(HEAVY) | adapters

    return of


def test_the_daemon_alone_imports_no_adapter(imported: Imported) -> None:
    assert imported(NONE) == set()


def test_clouds_without_an_sdk_import_none(imported: Imported) -> None:
    assert imported(WITHOUT_SDK) == {f"providers.{name}.provider" for name in ("lambda_cloud", "paperspace", "runpod")}


def test_aws_imports_its_own_sdk_alone(imported: Imported) -> None:
    assert imported(AWS) == {"providers.aws.provider", "boto3", "botocore"}


def test_googles_sdk_waits_for_the_first_call(imported: Imported) -> None:
    assert imported(GCE) == {"providers.gce.provider"}


PARTS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from providers.gce.sdk import SERVICES, sdk_of_google
with ThreadPoolExecutor(4) as pool:
    sdk, *others = pool.map(lambda _: sdk_of_google(), range(4))
assert all(other is sdk for other in others)
assert sdk.compute.Instance(name="x").name == "x"
services = {name.split(".")[4] for name in sys.modules if name.startswith("google.cloud.compute_v1.services.")}
drawn_in = {"global_operations", "region_operations"}
assert services - drawn_in == set(SERVICES.values()), services
assert "google.cloud.compute_v1" not in sys.modules, "others get the whole package"
"""


def test_of_googles_sdk_only_the_parts_are_imported() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PARTS], check=True, timeout=250)


WHOLE = """
import providers.gce.sdk as gce
gce.SERVICES["InstancesClient"] = "laid_out_in_another_way"
compute = gce.sdk_of_google().compute
assert compute.__name__ == gce.PACKAGE
assert compute.InstancesClient and compute.BackendBucketsClient and compute.Instance
"""


def test_an_sdk_with_another_layout_is_imported_whole() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", WHOLE], check=True, timeout=250)
