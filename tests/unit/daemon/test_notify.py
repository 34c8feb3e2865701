from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshd.daemon.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = f"@meshd-test-{os.getpid()}-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name[1:] if name.startswith("@") else name)
        listening.settimeout(20)
        yield listening, name


def test_each_word(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("3 machines")
    assert listening.recv(4096) == b"READY=1\nSTATUS=3 machines"
    notifier.status("two\nlines\n")
    assert listening.recv(4096) == b"STATUS=two lines"
    notifier.watchdog()
    assert listening.recv(4096) == b"WATCHDOG=1"
    notifier.stopping()
    assert listening.recv(4096) == b"STOPPING=1"
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    first, second = listening.recv(4096).split(b"\n")
    assert first == b"RELOADING=1"
    assert before <= int(second.removeprefix(b"MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_a_long_status_is_cut(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    Notifier({"NOTIFY_SOCKET": name}).status("ä" * 5000)
    assert len(listening.recv(4096).decode()) == len("STATUS=") + 400


def test_nobody_listens(tmp_path: Path) -> None:
    for env in (
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": str(tmp_path / "none")},
        {"NOTIFY_SOCKET": "@meshd-nobody"},
    ):
        notifier = Notifier(env)
        notifier.ready()
        notifier.status("")
        notifier.watchdog()


def test_a_full_queue_does_not_block(manager: tuple[socket.socket, str]) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager[1]})
    began = time.monotonic()
    for _ in range(5000):
        notifier.watchdog()
    assert time.monotonic() - began < 20
