"""The head's settings for each stand-in: what meshd and its adapters accept."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.sandbox.cluster import ClusterOptions
from deploy.sandbox.demo.cli import PROVIDERS
from deploy.sandbox.vendors import VENDORS, credentials
from meshd.config import load
from meshd.daemon.providers.registry import load_providers


def test_the_demonstration_knows_every_cloud() -> None:
    assert set(PROVIDERS) == set(VENDORS)
    assert len({vendor.port for vendor in VENDORS.values()}) == len(VENDORS)


@pytest.mark.parametrize("names", [*((name,) for name in PROVIDERS), PROVIDERS])
async def test_the_adapters_take_their_tables(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "meshd.toml"
    file.write_text(ClusterOptions(providers=names).settings())
    for path, text in credentials(names).items():
        (tmp_path / path.replace("/", "_")).write_text(text)  # as systemd names them
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    settings = load(file)
    assert settings.pools["h100"].providers == names
    assert settings.pools["h100"].spot == ("prefer" if "gce" in names else "never")
    adapters = load_providers(settings, lambda: datetime.now(UTC), lambda _name: None)
    assert set(adapters) == set(names)
    for adapter in adapters.values():
        await adapter.aclose()
