"""How meshd on a sandbox's head is pointed at each stand-in: port, table of the settings, secrets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from deploy.sandbox.clouds.gce_key import service_account
from deploy.sandbox.clouds.server import DEFAULT_LAMBDA_KEY, DEFAULT_PAPERSPACE_KEY, DEFAULT_RUNPOD_KEY
from deploy.sandbox.network import GATEWAY


@dataclass(frozen=True, slots=True)
class Vendor:
    """One cloud.

    Attributes:
        port: where its stand-in listens.
        table: of `[providers.NAME]`, by key; `{url}` stands for the stand-in's address.
        secrets: makes the files of /etc/meshd/credentials/NAME, name to content.
        only_spot: it rents machines with a single GPU as spot machines only.
    """

    port: int
    table: Mapping[str, object]
    secrets: Callable[[], dict[str, str]] = field(repr=False)
    only_spot: bool = False

    def settings(self, name: str, more: Mapping[str, object] | None = None) -> str:
        """The table as TOML.

        Args:
            name: the provider's.
            more: keys in place of, or besides, those of `table`.
        """
        url = f"http://{GATEWAY}:{self.port}"
        rows = {**self.table, **(more or {})}
        return "\n".join([f"[providers.{name}]", *(f"{key} = {_toml(value, url)}" for key, value in rows.items()), ""])


def _toml(value: object, url: str) -> str:
    if isinstance(value, str):
        return '"' + value.replace("{url}", url) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(one, url) for one in value) + "]"
    return str(value)


# One region each: a sandbox shows how meshd goes from cloud to cloud, not through the zones of one.
VENDORS: Mapping[str, Vendor] = {
    "aws": Vendor(
        9001,
        {"endpoint_url": "{url}", "access_key_id": "AKIASANDBOXSANDBOX00", "regions": ("us-east-1",)},
        lambda: {"secret_access_key": "sandbox-secret"},
    ),
    "lambda": Vendor(9002, {"base_url": "{url}", "regions": ("us-west-1",)}, lambda: {"api_key": DEFAULT_LAMBDA_KEY}),
    "runpod": Vendor(
        9003,
        {"base_url": "{url}", "data_centers": ("US-KS-2",), "image": "meshd/pod"},
        lambda: {"api_key": DEFAULT_RUNPOD_KEY},
    ),
    "paperspace": Vendor(9004, {"base_url": "{url}", "regions": ("ny2",)}, lambda: {"api_key": DEFAULT_PAPERSPACE_KEY}),
    "gce": Vendor(
        9005,
        {"api_endpoint": "{url}", "regions": ("us-central1",), "spot": True},
        lambda: {"service_account": service_account()},
        only_spot=True,
    ),
}


def credentials(names: Collection[str]) -> dict[str, str]:
    """The secrets of these providers, by their path below /etc/meshd/credentials."""
    return {f"{name}/{file}": text for name in names for file, text in VENDORS[name].secrets().items()}
