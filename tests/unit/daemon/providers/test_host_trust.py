"""A provider that rents on hosts of strangers is named by `meshctl doctor`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from meshd.daemon.providers.report import host_trust
from meshd.provider_api import Provider, ProviderContext
from providers.lambda_cloud.provider import create as create_lambda
from providers.runpod.provider import create as create_runpod


@pytest.mark.parametrize(
    ("clouds", "status"), [(("secure",), "ok"), (("secure", "community"), "warn"), (("community",), "warn")]
)
async def test_runpods_community_cloud(clouds: tuple[str, ...], status: str) -> None:
    def context(**table: object) -> ProviderContext:
        return ProviderContext(
            cluster="lab", settings={"api_key": "key", **table}, now=lambda: datetime.now(UTC),
            fetched_prices=lambda: None,
        )  # fmt: skip

    providers: dict[str, Provider] = {
        "runpod": create_runpod(context(clouds=clouds)),
        "lambda": create_lambda(context()),
    }
    row = host_trust(providers)
    assert (row.name, row.status) == ("trust in hosts", status)
    assert ("runpod" in row.text, "lambda" in row.text) == (status == "warn", False)
    for provider in providers.values():
        await provider.aclose()
