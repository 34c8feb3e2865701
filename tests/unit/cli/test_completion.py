"""Completion of commands and names in a shell."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.served import Served
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import complete


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(meshctl: Meshctl, shell: str) -> None:
    assert "_MESHCTL_COMPLETE" in meshctl("completion", shell).out


def test_names_are_completed_from_the_daemon(
    still: MemoryDesk, served: Served, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.cli.params.completion.TIMEOUT_S", 60.0)  # nobody presses TAB here
    assert complete(socket_path, ["nodes", "--pool"], "a") == ["a100"]
    assert "lab-a100-1-k7q2m1" in complete(socket_path, ["remove"], "lab-")
    assert complete(socket_path, ["remove"], "a100-3") == ["a100-3"]
    assert complete(socket_path.with_name("absent"), ["remove"], "lab-") == []


def test_completion_does_not_wait_for_a_daemon_that_hangs(socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(socket_path))
        mute.listen()
        began = time.monotonic()
        assert complete(socket_path, ["remove"], "lab-") == []
        assert time.monotonic() - began < 20
