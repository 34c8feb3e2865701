"""Only enabled adapters are imported, and only the used parts of Google's SDK: it saves seconds and 100 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
import json, sys
from datetime import UTC, datetime
import meshd.daemon.main
from meshd.config import Settings
from meshd.daemon.providers.registry import load_providers
tables = json.loads(sys.argv[1])
found = load_providers(Settings(providers=tables), lambda: datetime.now(UTC), lambda _: None)
json.dump({"enabled": sorted(found), "modules": sorted(sys.modules)}, sys.stdout)
"""


def imported(**tables: dict[str, object]) -> set[str]:
    """The large packages and adapters that a daemon with these providers imports before any call."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps(tables)], capture_output=True, text=True, check=False,
        timeout=250, cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["enabled"] == sorted(tables)
    adapters = {name for name in told["modules"] if name.startswith("providers.") and name.endswith(".provider")}
    return {name for name in HEAVY if name in told["modules"]} | adapters


def test_the_daemon_alone_imports_no_adapter() -> None:
    assert imported() == set()


def test_clouds_without_an_sdk_import_none() -> None:
    clouds = {"lambda": "lambda_cloud", "paperspace": "paperspace", "runpod": "runpod"}
    tables: dict[str, dict[str, object]] = {name: {"api_key": "k"} for name in clouds}
    assert imported(**tables) == {f"providers.{package}.provider" for package in clouds.values()}


def test_aws_imports_its_own_sdk_alone() -> None:
    assert imported(aws={"regions": ["us-east-1"]}) == {"providers.aws.provider", "boto3", "botocore"}


def test_googles_sdk_waits_for_the_first_call() -> None:
    table: dict[str, object] = {"api_endpoint": "http://127.0.0.1:9", "anonymous": True, "project": "lab-1"}
    assert imported(gce=table) == {"providers.gce.provider"}


PARTS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from providers.gce.sdk import SERVICES, sdk_of_google
with ThreadPoolExecutor(4) as pool:
    sdk, *others = pool.map(lambda _: sdk_of_google(), range(4))
assert all(other is sdk for other in others)
assert sdk.compute.Instance(name="x").name == "x"
services = {name.split(".")[4] for name in sys.modules if name.startswith("google.cloud.compute_v1.services.")}
assert services == set(SERVICES.values()), services
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
