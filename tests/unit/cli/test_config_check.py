"""`meshctl config check`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Meshctl


def test_config_check(meshctl: Meshctl, tmp_path: Path) -> None:
    path = tmp_path / "meshd.toml"
    path.write_text('[cluster]\nname = "lab"\nnmae = 1\n[pools.a100]\nmax_nodes = 0\n')
    ran = meshctl("config", "check", config=str(path))
    assert ran.code == 1
    assert "cluster.nmae" in ran.out and "pools.a100.max_nodes" in ran.out
    path.write_text('[cluster]\nname = "lab"\n[pools.a100]\ngpu = "a100"\n[providers.nimbus]\n')
    ran = meshctl("config", "check", "-o", "json", config=str(path))
    assert ran.code == 1
    found = [(c["status"], c["name"]) for c in ran.json()["checks"]]
    assert found[:3] == [("ok", str(path)), ("warn", "auth key"), ("fail", f"{path}:5")]
    assert {name for _, name in found[3:]} <= {"pools.a100"}, "what the queue may rent is told beside the faults"
    path.write_text('[cluster]\nname = "lab"\n[pools.a100]\ngpu = "a100"\n')
    assert meshctl("config", "check", config=str(path)).code == 0
    assert meshctl("config", "check", config=str(tmp_path / "none")).code == 1
    path.write_text('[cluster]\nname = "lab"\n[tailnet]\nkey_mode = "per_machine"\n')
    ran = meshctl("config", "check", "-o", "json", config=str(path))
    (fault,) = [row for row in ran.json()["checks"] if row["status"] == "fail"]
    assert fault["name"] == "tailnet.key_mode" and "docs/tailnet.md" in fault["text"]


def test_config_check_looks_for_the_auth_key(meshctl: Meshctl, tmp_path: Path) -> None:
    path, key = tmp_path / "meshd.toml", tmp_path / "key"

    def check(tailnet: str = "") -> list[tuple[str, str]]:
        path.write_text(f'[cluster]\nname = "lab"\n[tailnet]\n{tailnet}\n[pools.a100]\ngpu = "a100"\n')
        ran = meshctl("config", "check", "-o", "json", config=str(path))
        rows = [(row["name"], row["status"]) for row in ran.json()["checks"][1:]]
        return [row for row in rows if row[0] not in {"providers", "pools.a100"}]

    assert check() == [("auth key", "warn")]
    assert check(f'auth_key_file = "{key}"') == [(str(key), "fail")]
    key.write_text("tskey-auth-k1-x")
    assert check(f'auth_key_file = "{key}"') == []
    (tmp_path / "credentials" / "tailscale").mkdir(parents=True)
    (tmp_path / "credentials" / "tailscale" / "api_token").write_text("tskey-api-x")
    (tmp_path / "credentials" / "tailscale" / "api_token").chmod(0o600)
    assert check() == [], "keys of their own can be minted"


ADAPTER = """
from meshd.runtime.secretfile import read_secret
from meshd.errors import ConfigError
from meshd.provider_api import ProviderCapabilities
class Provider:
    name = "nimbus"
    capabilities = ProviderCapabilities()
    async def aclose(self): pass
def create(context):
    if set(context.settings) - {"region"}:
        raise ConfigError("providers.nimbus", ["regoin: unknown key"])
    if read_secret(None, "nimbus_api_key") is None:
        raise ConfigError("providers.nimbus", ["no api key"])
    return Provider()
"""


def test_config_check_asks_the_adapters(meshctl: Meshctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "nimbus-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nimbus\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[meshd.providers]\nnimbus = nimbus_adapter_for_test:create\nbroken = no_such_module_here:create\n"
    )
    (tmp_path / "site" / "nimbus_adapter_for_test.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    path = tmp_path / "meshd.toml"

    def check(provider: str) -> list[tuple[str, str]]:
        path.write_text(f'[cluster]\nname = "lab"\n[pools.a100]\ngpu = "a100"\n{provider}\n')
        ran = meshctl("config", "check", "-o", "json", config=str(path))
        return [
            (row["status"], row["text"])
            for row in ran.json()["checks"][1:]
            if row["name"] not in {"auth key", "pools.a100"}
        ]

    assert check("[providers.nimbus]\nregoin = 1") == [("fail", "providers.nimbus: regoin: unknown key")]
    assert check("[providers.nimbus]") == [("fail", "providers.nimbus: no api key")]
    (tmp_path / "credentials" / "nimbus").mkdir(parents=True)
    (tmp_path / "credentials" / "nimbus" / "api_key").write_text("secret")
    (tmp_path / "credentials" / "nimbus" / "api_key").chmod(0o600)
    assert [status for status, _ in check("[providers.nimbus]")] == ["ok"]
    assert check("[providers.nimbus]\nenabled = false\nregoin = 1")[0][0] == "warn"
    assert "no_such_module_here" in check("[providers.broken]")[0][1]
    assert "CREDENTIALS_DIRECTORY" not in os.environ
