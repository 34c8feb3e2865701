"""What root does about the head's munge key: only what the request may ask for, and never a head without munged."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshd.munge import headkey
from meshd.munge.headkey import Munge, fingerprint, serve
from meshd.runtime.request import RequestRefused

OLD, NEW = b"o" * 1024, b"n" * 1024


class Head:
    """A head's /etc/munge and munged, in a directory."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "run"
        self.directory.mkdir()
        self.request = self.directory / headkey.REQUEST
        self.answer = root / "answer.json"
        self.key = root / "munge.key"
        self.key.write_bytes(OLD)
        self.key.chmod(0o400)
        self.calls: list[str] = []
        self.running = True
        self.refuses: Callable[[str], bool] = lambda _: False
        self.deaf = False
        self.munge = Munge(self.key, self._unit, lambda: self.running and not self.deaf)

    def _unit(self, verb: str) -> None:
        self.calls.append(verb)
        if self.refuses(verb):
            raise RequestRefused(f"systemd says no to {verb}")
        self.running = verb == "start"

    def ask(self, body: object, mode: int = 0o600) -> dict[str, Any]:
        self.request.write_text(body if isinstance(body, str) else json.dumps(body))
        self.request.chmod(mode)
        done = serve(self.request, self.answer, self.munge)
        assert not self.request.exists(), "or it would be served for ever"
        told: dict[str, Any] = json.loads(self.answer.read_text())
        assert told["ok"] is done
        return told

    def stage(self, key: bytes = NEW, **more: object) -> dict[str, Any]:
        encoded = base64.b64encode(key).decode()
        return self.ask({"id": "1", "action": "stage", "key_b64": encoded, "fingerprint": fingerprint(key), **more})

    def switch(self, key: bytes = NEW, at: float = 0.0, away_s: float = 0.0) -> dict[str, Any]:
        body = {"id": "2", "action": "switch", "fingerprint": fingerprint(key), "at_unix": at, "away_s": away_s}
        return self.ask(body)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.setattr(headkey, "SOCKET_WAIT_S", 0.05)
    return Head(tmp_path)


def test_stage_and_switch_at_a_moment(head: Head) -> None:
    staged = head.stage()
    assert (staged["ok"], staged["id"], staged["key"], staged["staged"]) == (
        True, "1", fingerprint(OLD), fingerprint(NEW),
    )  # fmt: skip
    assert head.key.read_bytes() == OLD
    assert head.calls == []
    moment = time.time() + 0.1
    told = head.switch(at=moment, away_s=0.05)
    assert told["ok"], told
    assert told["stopped_unix"] >= moment
    assert told["started_unix"] >= moment + 0.05
    assert head.calls == ["stop", "start"]
    assert head.key.read_bytes() == NEW
    assert (told["key"], told["staged"], told["previous"]) == (fingerprint(NEW), "", fingerprint(OLD))
    for path in (head.key, head.munge.previous):
        assert path.stat().st_mode & 0o777 == 0o400
    looked = head.ask({"id": "3", "action": "look"})
    assert looked["ok"]
    assert looked["made_unix"] == head.key.stat().st_mtime
    assert head.switch()["ok"], "asked again: nothing to do"
    assert head.calls == ["stop", "start"]
    back = head.switch(OLD)
    assert back["ok"], back
    assert head.key.read_bytes() == OLD
    assert back["previous"] == fingerprint(NEW)
    assert "nnnn" not in head.answer.read_text()
    assert base64.b64encode(NEW).decode()[:40] not in head.answer.read_text()


def test_munged_that_does_not_come_back_gets_the_old_key(head: Head) -> None:
    head.stage()
    starts: list[int] = []
    head.refuses = lambda verb: verb == "start" and (starts.append(1) or len(starts) == 1)
    told = head.switch()
    assert not told["ok"]
    assert "the old one is back" in told["detail"]
    assert "systemd says no to start" in told["detail"]
    assert head.key.read_bytes() == OLD
    assert told["staged"] == fingerprint(NEW)
    assert head.running
    head.refuses = lambda verb: verb == "stop"
    told = head.switch()
    assert not told["ok"]
    assert head.key.read_bytes() == OLD
    assert head.running
    head.refuses, head.deaf = (lambda _: False), True
    told = head.switch()
    assert not told["ok"]
    assert head.key.read_bytes() == OLD


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("no json", "not JSON"),
        ("[]", "no JSON object"),
        ({"action": "delete"}, "not known"),
        ({"action": "stage", "key_b64": "***"}, "not base64"),
        ({"action": "stage", "key_b64": base64.b64encode(b"short").decode()}, "5 bytes"),
        ({"action": "stage", "key_b64": base64.b64encode(NEW).decode(), "fingerprint": "0" * 16}, "not the one"),
        ({"action": "switch", "fingerprint": fingerprint(NEW)}, "no moment"),
        ({"action": "switch", "fingerprint": fingerprint(NEW), "at_unix": 9e12, "away_s": 0}, "60 s away"),
        ({"action": "switch", "fingerprint": fingerprint(NEW), "at_unix": 0, "away_s": 900}, "60 s away"),
        ({"action": "switch", "fingerprint": fingerprint(NEW), "at_unix": 0, "away_s": 0}, "neither staged nor"),
        ("x" * 9000, "too long"),
    ],
)
def test_what_is_refused_changes_nothing(head: Head, body: object, words: str) -> None:
    told = head.ask(body)
    assert not told["ok"]
    assert words in told["detail"]
    assert head.key.read_bytes() == OLD
    assert head.calls == []


def test_only_a_file_of_meshd_alone_is_taken(head: Head, tmp_path: Path) -> None:
    body = {"action": "stage", "key_b64": base64.b64encode(NEW).decode(), "fingerprint": fingerprint(NEW)}
    assert "0600" in head.ask(body, mode=0o640)["detail"]
    other = tmp_path / "other"
    other.write_text(json.dumps(body))
    other.chmod(0o600)
    head.request.symlink_to(other)
    assert not serve(head.request, head.answer, head.munge)
    assert not head.request.is_symlink()
    assert other.exists()
    os.mkfifo(head.request, 0o600)
    assert not serve(head.request, head.answer, head.munge)
    assert head.key.read_bytes() == OLD
    if os.geteuid() == 0:
        os.chown(head.directory, 12345, -1)
        assert "meshd's user" in head.ask(body)["detail"]
