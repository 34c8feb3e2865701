"""Settings: every fault is one clear line, secrets are in none, the environment wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshd import config
from meshd.codes import FaultCode
from meshd.config import TailnetSettings, tailnet_credentials
from meshd.errors import ConfigError
from meshd.runtime.secretfile import read_secret
from tests.codes import faulty

GOOD = """
[cluster]
name = "lab"
[providers.aws]
region = "us-east-1"
[pools.a100]
gpu = "a100"
providers = ["aws"]
"""


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "meshd.toml"
    path.write_text(text)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    return caught.value.problems


def test_a_good_file(tmp_path: Path) -> None:
    settings = config.load(write(tmp_path, GOOD))
    assert settings.pools["a100"].max_nodes == 8
    assert settings.providers["aws"].own() == {"region": "us-east-1"}


def test_a_gpu_in_any_spelling(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace('gpu = "a100"', 'gpu = "NVIDIA A100-SXM4-40GB"'))
    assert config.load(path).pools["a100"].gpu == "a100-sxm"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[cluster]\nnmae = 'x'\n", "cluster.nmae: unknown key"),
        ("[clutser]\n", "clutser: unknown key"),
        ("[tailnet]\nauth_key_file = 3\n", "tailnet.auth_key_file = 3: it must be a path"),
        ("[timing]\ntick_interval_s = 'soon'\n", 'line 2: timing.tick_interval_s = "soon": it must be a number'),
        ("[timing]\ntick_interval_s = 0\n", "line 2: timing.tick_interval_s = 0: it must be more than 0"),
        ("[pools.A100]\n", "pool name 'A100'"),
        ('[pools."a\\n"]\n', "pool name"),
        ("[pools.a]\ngpu = '80GB'\n", "names no GPU model"),
        ("[pools.a]\nproviders = ['gce']\n", "which has no [providers.*] table"),
        ("[pools.a]\npartition = 'x y'\n", "pools.a.partition = "),
        ("[pools.a]\nfeatures = ['x\\nPluginDir=y']\n", "pools.a.features[0] = "),
        ("[pools.a]\ncpus_min = 70000\n", "pools.a.cpus_min = 70000: "),
        ("[pools.a]\ndefault = true\n[pools.b]\ndefault = true\n", "more than one pool"),
        ("[cluster]\nname = 'Not Good'\n", "cluster.name = "),
        ("[cluster\n", "line 1"),
        ("a = 1\na = 2\n", "line 2"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, text: str, words: str) -> None:
    assert any(words in line for line in problems(write(tmp_path, text))), problems(write(tmp_path, text))


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    assert len(problems(write(tmp_path, "[cluster]\nx = 1\n[log]\nlevel = 'loud'\n[slurm]\ny = 2\n"))) == 3


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with faulty(FaultCode.FILE_MISSING):
        config.load(tmp_path / "none.toml")
    with faulty(FaultCode.FILE_UNREADABLE):
        config.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with faulty(FaultCode.NOT_TOML):
        config.load(tmp_path / "latin.toml")


def test_the_environment_wins_within_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_CLUSTER__STATE_DIR", "/elsewhere")
    monkeypatch.setenv("MESHD_TIMING__TICK_INTERVAL_S", "7.5")
    settings = config.load(write(tmp_path, GOOD))
    assert settings.cluster.name == "lab", "the file's other values stay"
    assert settings.cluster.state_dir == Path("/elsewhere")
    assert settings.timing.tick_interval_s == 7.5


def test_a_variable_that_is_not_json_is_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_PROVIDERS", "{hunter2")
    lines = problems(write(tmp_path, GOOD))
    assert "MESHD_PROVIDERS" in lines[0]
    assert "hunter2" not in "".join(lines)


def test_values_are_not_in_errors(tmp_path: Path) -> None:
    lines = problems(write(tmp_path, "[tailnet]\nauth_key = 'tskey-secret'\n[timing]\ndead_man_s = 'tskey-secret'\n"))
    assert len(lines) == 2
    assert "tskey-secret" not in "".join(lines)


def test_secrets_come_from_a_file_or_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_secret(None, "key") is None
    (tmp_path / "key").write_text("s3cret\n")
    found = read_secret(tmp_path / "key", "key")
    assert found is not None
    assert found.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(found)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret(None, "key") == found
    assert read_secret(None, "other") is None


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", FaultCode.SECRET_UNUSABLE),
        (b"\n", FaultCode.SECRET_UNUSABLE),
        (b"\xff\xfehidden", FaultCode.SECRET_UNUSABLE),
        (None, FaultCode.SECRET_UNREADABLE),
    ],
)
def test_a_secret_that_cannot_be_used(tmp_path: Path, content: bytes | None, code: FaultCode) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with faulty(code) as caught:
        read_secret(path, "key")
    assert "hidden" not in str(caught.value)


def test_a_pool_that_names_no_gpu_has_machines_without(tmp_path: Path) -> None:
    pool = config.load(write(tmp_path, "[pools.cpu]\ncpus_min = 4\n")).pools["cpu"]
    assert (pool.gpu, pool.gpus_per_node) == ("", 0)
    with faulty(FaultCode.GPU_NEEDED):
        config.load(write(tmp_path, "[pools.cpu]\ngpus_per_node = 2\n"))


def test_what_mints_needs_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    for table in ({"key_mode": "per_machine"}, {"mint_auth_key": True}):
        with faulty(FaultCode.CREDENTIAL_NEEDED):
            tailnet_credentials(TailnetSettings.model_validate(table))
        (tmp_path / "token").write_text("tskey-api-x")
        token, secret = tailnet_credentials(
            TailnetSettings.model_validate({**table, "api_token_file": tmp_path / "token"})
        )
        assert token is not None and secret is None
    assert tailnet_credentials(TailnetSettings()) == (None, None)
    with pytest.raises(ValueError, match="reusable"):
        TailnetSettings.model_validate({"key_mode": "single"})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[pools.default]\n", "pools.default"),
        ('[pools.a]\npartition = "DEFAULT"\n', "pools.a.partition"),
        ('[pools.a]\npartition = "Default"\n', "pools.a.partition"),
        ('[pools.a]\npartition = "a b"\n', "pools.a.partition"),
        ('[pools.a]\npartition = "a,b"\n', "pools.a.partition"),
        ('[pools.a]\npartition = "a\\nNodeName=b"\n', "pools.a.partition"),
    ],
)
def test_a_name_that_slurm_would_take_for_something_else_is_refused(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(write(tmp_path, text))
    assert [".".join(fault.key) for fault in caught.value.faults] == [where]
