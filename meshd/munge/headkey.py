"""Root's part in a rotation of the head's munge key, at meshd's request: `python -m meshd.munge.headkey`.

meshd is not root. meshd-munge.path starts this program when there is a request. It stores a key beside the present one,
or makes munged use a stored key from a given moment on, and answers with the keys that are there now. It uses only the
standard library, because it must start quickly and runs as root.

The request is a file of mode 0600 in meshd's runtime directory, of the user that the directory belongs to:
{"id", "action": "stage", "fingerprint", "key_b64"}, {"id", "action": "switch", "fingerprint", "at_unix", "away_s"}, or
{"id", "action": "look"}. Everybody may read the answer: {"id", "ok", "detail", "key", "staged", "previous",
"made_unix", "stopped_unix", "started_unix"}; the keys are named by their fingerprints.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshd.runtime.request import RequestRefused, take, write_whole

REQUEST = "munge-key.request"
ANSWER = Path("/run/meshd-munge/answer.json")
KEY = Path("/etc/munge/munge.key")
SOCKET = Path("/run/munge/munge.socket.2")
UNIT = "munge.service"
REQUEST_MAX_B = 8192
KEY_MIN_B, KEY_MAX_B = 32, 1024
AHEAD_MAX_S = 60.0
SOCKET_WAIT_S = 10.0
SYSTEMCTL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Munge:
    """The head's munge.

    Attributes:
        key: the key in place; those beside it have longer names.
        unit: starts and stops munged: called with "start" or "stop", raises RequestRefused when that fails.
        answers: whether munged takes connections.
    """

    key: Path = KEY
    unit: Callable[[str], None] = lambda verb: _systemctl(verb)
    answers: Callable[[], bool] = lambda: _connects(SOCKET)

    @property
    def staged(self) -> Path:
        """The key to come."""
        return self.key.with_name(self.key.name + ".staged")

    @property
    def previous(self) -> Path:
        """The key before the present one."""
        return self.key.with_name(self.key.name + ".previous")


def serve(request: Path, answer: Path, munge: Munge) -> bool:
    """Take the request, carry it out, write the answer. Returns whether it was carried out.

    Raises:
        OSError: the request cannot be taken, or the answer cannot be written.
    """
    asked: dict[str, Any] = {}
    answered: dict[str, Any] = {"ok": False, "detail": ""}
    try:
        asked = take(request, REQUEST_MAX_B)
        if asked.get("action") == "stage":
            _stage(munge, _key_of(asked))
        elif asked.get("action") == "switch":
            answered.update(_switch(munge, asked))
        elif asked.get("action") != "look":
            raise RequestRefused("the request has an action that is not known")
        answered["ok"] = True
    except RequestRefused as error:
        answered["detail"] = str(error)
    except OSError as error:
        answered["detail"] = f"{error.filename or munge.key}: {error.strerror}"
    answered["id"] = str(asked.get("id", ""))[:64]
    answered["made_unix"] = munge.key.stat().st_mtime if munge.key.exists() else 0.0
    answered |= {name: _fingerprint_of(getattr(munge, name)) for name in ("key", "staged", "previous")}
    write_whole(answer, json.dumps(answered).encode(), 0o644)
    return bool(answered["ok"])


def fingerprint(key: bytes) -> str:
    """The first 16 hex digits of its sha256, as `meshd.munge.key.fingerprint` and the node agent have it."""
    return hashlib.sha256(key).hexdigest()[:16]


def _key_of(asked: dict[str, Any]) -> bytes:
    try:
        key = base64.b64decode(str(asked.get("key_b64", "")), validate=True)
    except ValueError:
        raise RequestRefused("the key is not base64") from None
    if not KEY_MIN_B <= len(key) <= KEY_MAX_B:
        raise RequestRefused(f"the key has {len(key)} bytes; munged takes {KEY_MIN_B} to {KEY_MAX_B}")
    if fingerprint(key) != asked.get("fingerprint"):
        raise RequestRefused("the key is not the one that its fingerprint says")
    return key


def _stage(munge: Munge, key: bytes) -> None:
    write_whole(munge.staged, key, 0o400, _owner(munge))


def _switch(munge: Munge, asked: dict[str, Any]) -> dict[str, float]:
    """Make munged use the key from the moment on. Returns when it was away. In the end it runs, with either key."""
    wanted, at, away_s = str(asked.get("fingerprint")), asked.get("at_unix"), asked.get("away_s")
    if not isinstance(at, int | float) or not isinstance(away_s, int | float):
        raise RequestRefused("the request to switch has no moment")
    if at - time.time() > AHEAD_MAX_S or not 0 <= away_s <= AHEAD_MAX_S:
        raise RequestRefused(f"the moment to switch is over {AHEAD_MAX_S:g} s away")
    if _fingerprint_of(munge.key) == wanted:
        return {}
    if _fingerprint_of(munge.staged) != wanted:
        if _fingerprint_of(munge.previous) != wanted:
            raise RequestRefused("the key to switch to is neither staged nor the previous one")
        _stage(munge, munge.previous.read_bytes())
    before = munge.key.read_bytes() if munge.key.exists() else b""
    if before:
        write_whole(munge.previous, before, 0o400, _owner(munge))
    _sleep_until(at)
    stopped = time.time()
    try:
        munge.unit("stop")
        munge.staged.replace(munge.key)
        _sleep_until(min(at, stopped) + away_s)
        _start(munge)
    except (RequestRefused, OSError) as error:
        _put_back(munge, before)
        raise RequestRefused(f"munged does not work with the new key, so the old one is back: {error}") from None
    return {"stopped_unix": stopped, "started_unix": time.time()}


def _put_back(munge: Munge, before: bytes) -> None:
    """Put the old key back, and start munged."""
    if before and munge.key.read_bytes() != before:
        _stage(munge, munge.key.read_bytes())
        write_whole(munge.key, before, 0o400, _owner(munge))
    _start(munge)


def _start(munge: Munge) -> None:
    munge.unit("start")
    end_s = time.monotonic() + SOCKET_WAIT_S
    while not munge.answers():
        if time.monotonic() > end_s:
            raise RequestRefused("munged was started but takes no connection: journalctl -u munge")
        time.sleep(0.005)


def _sleep_until(unix: float) -> None:
    time.sleep(max(0.0, unix - time.time()))


def _owner(munge: Munge) -> tuple[int, int]:
    """The owner of the present key, or of its directory when there is no key: munge."""
    found = (munge.key if munge.key.exists() else munge.key.parent).stat()
    return found.st_uid, found.st_gid


def _fingerprint_of(path: Path) -> str:
    try:
        return fingerprint(path.read_bytes())
    except FileNotFoundError:
        return ""


def _systemctl(verb: str) -> None:
    # Units that require munge, as some have it, are not stopped with it: munged is back at once.
    argv = ["systemctl", "--job-mode=ignore-dependencies", verb, UNIT]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SYSTEMCTL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestRefused(f"`systemctl {verb} {UNIT}` did not end: {error}") from None
    if done.returncode != 0:
        raise RequestRefused(f"`systemctl {verb} {UNIT}`: {done.stderr.strip()[-300:] or done.returncode}")


def _connects(path: Path) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        probe.connect(str(path))
        return True
    return False


def main() -> None:
    """The command line. It exits with 0 also when the request was refused: the answer says so."""
    parser = argparse.ArgumentParser(description="Carries out meshd's request about the head's munge key.")
    parser.add_argument("directory", type=Path, help="meshd's runtime directory")
    arguments = parser.parse_args()
    if not serve(arguments.directory / REQUEST, ANSWER, Munge()):
        sys.stderr.write(f"a request was refused: see {ANSWER}\n")


if __name__ == "__main__":
    main()
