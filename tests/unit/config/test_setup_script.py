"""The script that a pool's `setup` names: only what nobody but root can change is given to machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshd.config import PoolSettings, Settings
from meshd.config.checks import SCRIPT_MAX_B, faults
from meshd.config.setup_script import read_script, script_doubts

ME = os.getuid()


def test_a_text_is_the_script_itself() -> None:
    for text in ("#!/bin/sh\necho", "#!/bin/true", "pip install x\n"):
        assert read_script(text).text == text
    assert read_script("").text == ""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "setup.sh"
    path.write_text("echo größe\n")
    path.chmod(0o644)
    return path


def test_a_file_is_read(script: Path) -> None:
    found = read_script(str(script), ME)
    assert (found.text, found.fault) == ("echo größe\n", "")
    link = script.with_name("link")
    link.symlink_to(script)
    assert read_script(str(link), ME).text == "echo größe\n"


def test_one_that_others_can_change_is_not_used(script: Path) -> None:
    for mode in (0o664, 0o646):
        script.chmod(mode)
        assert "others" in read_script(str(script), ME).fault
    script.chmod(0o644)
    script.parent.chmod(0o777)
    assert "others" in read_script(str(script), ME).fault
    script.parent.chmod(0o1777)
    assert read_script(str(script), ME).fault == "", "in a sticky directory nobody else can replace it"
    assert "others" in read_script(str(script), ME + 1).fault or ME == 0


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\0b", b"x" * (SCRIPT_MAX_B + 1)])
def test_what_is_no_script_is_not_used(script: Path, data: bytes) -> None:
    script.write_bytes(data)
    assert read_script(str(script), ME).fault


def test_a_missing_one_and_a_directory(tmp_path: Path) -> None:
    assert read_script(str(tmp_path / "no"), ME).fault
    assert read_script(str(tmp_path), ME).fault
    settings = Settings(pools={"a": PoolSettings(setup=str(tmp_path / "no")), "b": PoolSettings(setup="true\n")})
    (doubt,) = script_doubts(settings)
    assert doubt.key == ("pools", "a", "setup")


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ({"setup": "setup.sh"}, True), ({"setup": "/etc/setup.sh"}, False), ({"setup": "true\n"}, False),
        ({"setup": "#!/bin/sh\n" + "x" * SCRIPT_MAX_B}, True), ({"setup": "#!/bin/sh\n\0"}, True),
        ({"packages": ["jq", "libfoo-dev:amd64", "a=1.2-3"]}, False), ({"packages": ["Bad"]}, True),
        ({"packages": ["-o"]}, True), ({"packages": ["a b"]}, True), ({"packages": ["jq"] * 129}, True),
        ({"env": {"A": "1", "_b2": "größe $x 'y'"}}, False), ({"env": {"2A": "1"}}, True),
        ({"env": {"A B": "1"}}, True), ({"env": {"A": "1\n2"}}, True), ({"env": {"A": "x" * 4097}}, True),
        ({"env": {"SLURM_X": "1"}}, True), ({"env": {"PATH": "/x"}}, True), ({"env": {"": "1"}}, True),
        ({"env": {f"V{n}": "" for n in range(65)}}, True),
    ],
)  # fmt: skip
def test_what_the_settings_may_say(table: dict[str, object], wrong: bool) -> None:
    settings = Settings.model_validate({"pools": {"a": table}})
    assert bool(list(faults(settings))) is wrong
