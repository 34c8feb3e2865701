"""`meshctl simulate`, without a daemon, a network and credentials."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Meshctl

SETTINGS = """\
[cluster]
name = "lab"
state_dir = "{state}"
[providers.aws]
[providers.runpod]
[pools.a10g]
gpu = "a10g"
max_nodes = 2
idle_timeout_s = 300
"""
LOAD = '[[jobs]]\npool = "a10g"\nat = ["1m", "2m"]\nlasts = "10m"\n[cloud]\nboot = ["1m", "1m"]\n'
DUMP = (
    "JobID|User|Partition|Submit|ElapsedRaw|NNodes|ReqTRES\n"
    "1|ana|a10g|2026-11-01T10:00:00|600|1|cpu=4,gres/gpu=1\n"
    "2|ana|other|2026-11-01T10:01:00|600|1|cpu=4\n"
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings, a load and a dump; whoever connects to anything fails."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    (tmp_path / "meshd.toml").write_text(SETTINGS.format(state=tmp_path / "none"))
    (tmp_path / "load.toml").write_text(LOAD)
    (tmp_path / "dump").write_text(DUMP)
    return tmp_path


def test_it_shows_what_would_be_rented_with_the_dates_of_the_prices(meshctl: Meshctl, files: Path) -> None:
    config, load = str(files / "meshd.toml"), str(files / "load.toml")
    ran = meshctl("simulate", "--load", load, "-o", "json", config=config)
    assert ran.code == 0, ran.err
    found = ran.json()
    assert found["all_pools"]["started"] == 2
    assert [(row["provider"], row["instance_type"], row["machines"]) for row in found["rented"]] == [
        ("aws", "g5.xlarge", 2)
    ]
    assert any(text.startswith("aws: ") and "2025-07-01" in text for text in found["priced"])
    assert any(text.startswith("runpod: no prices") for text in found["priced"])
    table = meshctl("simulate", "--load", load, config=config)
    assert table.code == 0
    assert "g5.xlarge" in table.out and "2025-07-01" in table.out
    assert "jobs of a10g waited: 100% machines booted" in table.out


def test_it_takes_the_jobs_of_a_dump_and_tells_what_is_left_out(meshctl: Meshctl, files: Path) -> None:
    ran = meshctl("simulate", "--sacct", str(files / "dump"), "-o", "json", config=str(files / "meshd.toml"))
    assert ran.code == 0, ran.err
    assert (ran.json()["all_pools"]["jobs"], [row["count"] for row in ran.json()["left_out"]]) == (1, [1])


def test_two_settings_side_by_side_have_the_same_jobs(meshctl: Meshctl, files: Path) -> None:
    other = files / "other.toml"
    other.write_text(SETTINGS.format(state=files / "none").replace("max_nodes = 2", "max_nodes = 1"))
    argv = ("simulate", "--load", str(files / "load.toml"), "--compare", str(other))
    ran = meshctl(*argv, "-o", "json", config=str(files / "meshd.toml"))
    first, second = ran.json()["first"]["all_pools"], ran.json()["second"]["all_pools"]
    assert (first["machines"], second["machines"]) == (2, 1)
    assert first["wait_max_s"] < second["wait_max_s"]
    assert first["jobs"] == second["jobs"] == 2
    table = meshctl(*argv, config=str(files / "meshd.toml"))
    assert table.code == 0
    assert str(other) in table.out


def test_prices_of_a_saved_answer_and_faults_of_another_file(meshctl: Meshctl, files: Path) -> None:
    row = {
        "offer": "runpod/x/y", "provider": "runpod", "region": "x", "instance_type": "y", "gpu": "a10g", "gpus": 1,
        "gpu_memory_gib": 24, "vcpus": 8, "memory_mib": 65536, "usd_per_hour": 0.2, "arch": "x86_64",
    }  # fmt: skip
    import json

    (files / "offers.json").write_text(json.dumps({"at": "2026-11-20T10:00:00Z", "offers": [row]}))
    (files / "faults.toml").write_text('[[faults]]\nkind = "no_capacity"\nfor = "30m"\n')
    ran = meshctl(
        "simulate", "--load", str(files / "load.toml"), "--offers", str(files / "offers.json"),
        "--faults", str(files / "faults.toml"), "-o", "json", config=str(files / "meshd.toml"),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert {row["provider"] for row in ran.json()["rented"]} == {"runpod"}
    assert ran.json()["orders_refused"] > 0
    assert ran.json()["all_pools"]["wait_max_s"] >= 28 * 60
    assert any("2026-11-20" in text for text in ran.json()["priced"])


def test_prices_that_were_fetched_here_come_before_those_that_ship(meshctl: Meshctl, files: Path) -> None:
    prices = files / "none" / "prices"
    prices.mkdir(parents=True)
    (prices / "aws.json").write_text(
        '{"as_of": "2026-11-25T00:00:00Z", "usd_per_hour": {"us-east-1": {"g5.xlarge": [9.0, null]}}}'
    )
    ran = meshctl("simulate", "--load", str(files / "load.toml"), "-o", "json", config=str(files / "meshd.toml"))
    assert {row["instance_type"] for row in ran.json()["rented"]} == {"g5.2xlarge"}, "which is cheaper now"
    assert any("2026-11-25" in text and "2025-07-01" in text for text in ran.json()["priced"])


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ((), 2, "--load"),
        (("--load", "load.toml", "--sacct", "dump"), 2, "--sacct"),
        (("--load", "none.toml"), 1, "none.toml"),
        (("--sacct", "load.toml"), 1, "line 1"),
        (("--load", "dump"), 1, "line 1"),
        (("--load", "load.toml", "--offers", "dump"), 1, "meshctl offers"),
        (("--load", "load.toml", "--compare", "load.toml"), 1, "load.toml"),
        (("--load", "load.toml", "--faults", "load.toml"), 1, "jobs"),
        (("--load", "target.toml"), 1, "nope"),
    ],
)
def test_bad_input_is_named(
    meshctl: Meshctl, files: Path, argv: tuple[str, ...], code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    (files / "target.toml").write_text("[targets]\nnope = 4\n")
    ran = meshctl("simulate", *argv, config=str(files / "meshd.toml"))
    assert (ran.code, words in ran.err) == (code, True), ran.err


def test_no_jobs_no_prices_and_faults_of_nothing_are_said(meshctl: Meshctl, files: Path) -> None:
    (files / "dump").write_text(DUMP.splitlines()[0] + "\n")
    ran = meshctl("simulate", "--sacct", str(files / "dump"), config=str(files / "meshd.toml"))
    assert (ran.code, "no jobs" in ran.out) == (0, True)
    (files / "faults.toml").write_text('[[faults]]\nkind = "no_capacity"\noffer = "aws/mars/*"\n')
    argv = ("--load", str(files / "load.toml"), "--faults", str(files / "faults.toml"), "-o", "json")
    ran = meshctl("simulate", *argv, config=str(files / "meshd.toml"))
    assert [("aws/mars/*" in row["text"], row["count"]) for row in ran.json()["left_out"]] == [(True, 1)]
    priceless = SETTINGS.format(state=files / "none").replace("[providers.aws]", "")
    (files / "meshd.toml").write_text(priceless)
    ran = meshctl("simulate", "--load", str(files / "load.toml"), "-o", "json", config=str(files / "meshd.toml"))
    found = ran.json()
    assert (ran.code, found["all_pools"]["started"], [row["count"] for row in found["never"]]) == (0, 0, [2])
    assert "--offers" in found["priced"][0]


def test_the_same_settings_twice_differ_in_nothing(meshctl: Meshctl, files: Path) -> None:
    same = files / "same.toml"
    same.write_text((files / "meshd.toml").read_text())
    argv = ("simulate", "--load", str(files / "load.toml"), "--compare", str(same), "-o", "json")
    found = meshctl(*argv, config=str(files / "meshd.toml")).json()
    first, second = ({**found[name], "settings": ""} for name in ("first", "second"))
    assert first == second
