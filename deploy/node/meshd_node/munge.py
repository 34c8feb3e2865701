"""munge on this machine: its key, its daemon, and the proof that head and node share the key and the time."""

from __future__ import annotations

import base64
import hashlib
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .errors import HeadRefused, MungeFault, NotPossible, ToolFailed, ToolMissing
from .files import write_atomic
from .headlink import HeadLink
from .paths import Paths
from .services import Service
from .tools import run
from .users import Account, give, make_dir

SOCKET_WAIT_S = 20.0
STEP_S = 0.01
SWITCH_AHEAD_MAX_S = 60.0
STATUS_MUNGE = 409
"""The head's status when its munge refuses our credential."""
_KINDS = {
    15: "expired: this machine's clock is ahead of the head's by more than munge allows; set the clock (NTP)",
    16: "rewound: this machine's clock is behind the head's by more than munge allows; set the clock (NTP)",
    14: "invalid: the two sides do not have the same munge key "
    "(after a change of the head's key: systemctl restart munge meshd there)",
    17: "replayed: the same credential was shown twice",
}


def put_key(paths: Paths, key: bytes, account: Account) -> bool:
    """Write the cluster's key atomically: mode 0400, owner munge. Returns whether it changed.

    Raises:
        NotPossible: munged would refuse a key of this length.
    """
    if not 32 <= len(key) <= 1024:
        raise NotPossible(f"a munge key of {len(key)} bytes is of no use", "make a new key on the head")
    put_dirs(paths, account)
    with suppress(OSError):
        if paths.munge_key.read_bytes() == key and (paths.munge_key.stat().st_mode & 0o777) == 0o400:
            return False
    write_atomic(paths.munge_key, key, 0o400, (account.uid, account.gid))
    return True


def put_dirs(paths: Paths, account: Account) -> None:
    """Make munged's directories with the owners and modes that it requires. /run is empty after each boot."""
    make_dir(paths.munge_etc, account, 0o700)
    make_dir(paths.munge_lib, account, 0o711)
    make_dir(paths.munge_log, account, 0o700)
    make_dir(paths.munge_run, account, 0o755)
    for path in (paths.munge_lib, paths.munge_log):
        give(path, account)  # the image's munged may have run under another number


def stage_key(paths: Paths, key: bytes, account: Account) -> None:
    """Write the next key beside the present one, for `switch_key`."""
    if not 32 <= len(key) <= 1024:
        raise NotPossible(f"a munge key of {len(key)} bytes is of no use", "make a new key on the head")
    write_atomic(paths.munge_key_staged, key, 0o400, (account.uid, account.gid))


class Change(NamedTuple):
    """When munged was stopped and started, in seconds since the epoch by this machine's clock. Both 0: no change."""

    stopped_unix: float = 0.0
    started_unix: float = 0.0


def switch_key(paths: Paths, service: Service, account: Account, digest: str, at_unix: float, away_s: float) -> Change:
    """Switch munged to the staged or the previous key at a given time; the present key becomes the previous one.

    All machines stop munged at that time and start it `away_s` later. Slurm waits for a stopped munged, but fails with
    one that has another key. So a machine that is a little late causes no failure.

    Args:
        paths: the machine's paths.
        service: munged.
        account: the user munge.
        digest: of the key to switch to; nothing happens when that key is in place.
        at_unix: the time of the switch, by this machine's clock; a past time means now.
        away_s: how long munged stays stopped.

    Raises:
        NotPossible: no key here has the digest, or the moment is too far away.
        MungeFault: munged did not come back.
    """
    if digest_of(paths.munge_key) == digest:
        return Change()
    if digest_of(paths.munge_key_staged) != digest:
        if digest_of(paths.munge_key_previous) != digest:
            raise NotPossible("the munge key to switch to is not staged here", "send it first")
        stage_key(paths, paths.munge_key_previous.read_bytes(), account)
    if at_unix - time.time() > SWITCH_AHEAD_MAX_S:
        raise NotPossible(f"the moment to switch is over {SWITCH_AHEAD_MAX_S:g} s away", "set this machine's clock")
    with suppress(FileNotFoundError):
        present = paths.munge_key.read_bytes()
        write_atomic(paths.munge_key_previous, present, 0o400, (account.uid, account.gid))
    _sleep_until(at_unix)
    stopped = time.time()
    try:
        service.stop()
        paths.munge_key_staged.replace(paths.munge_key)
        _sleep_until(min(at_unix, stopped) + away_s)
    finally:
        service.start()
    wait_until_up(paths, service)
    return Change(stopped, time.time())


def forget_keys(paths: Paths) -> None:
    """Remove the keys that are not in use."""
    for path in (paths.munge_key_staged, paths.munge_key_previous):
        path.unlink(missing_ok=True)


def _sleep_until(unix: float) -> None:
    time.sleep(max(0.0, unix - time.time()))


def fingerprint(key: bytes) -> str:
    """A digest of a key that may be shown: the first 16 hex digits of its sha256."""
    return hashlib.sha256(key).hexdigest()[:16]


def answers(paths: Paths) -> bool:
    """Whether munged takes connections on its socket."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        probe.connect(str(paths.munge_socket))
        return True
    return False


def wait_until_up(paths: Paths, service: Service) -> None:
    """Wait for munged's socket.

    Raises:
        MungeFault: the socket did not appear within 20 s.
    """
    deadline = time.monotonic() + SOCKET_WAIT_S
    while not answers(paths):
        if time.monotonic() > deadline:
            state = "runs" if service.alive() else "does not run"
            raise MungeFault(f"munged {state} but its socket takes no connection: see its log in /var/log/munge")
        time.sleep(STEP_S)


def prove(link: HeadLink, token: str) -> None:
    """Prove munge both ways: the head decodes our credential, and we decode the head's.

    Raises:
        MungeFault: with the direction that fails, and why.
        HeadUnreachable, HeadRefused: the head did not take part.
    """
    try:
        ours = run(["munge", "-n"], 10.0).stdout.strip()
    except ToolFailed as error:
        raise MungeFault(f"munged does not encode: {error}") from error
    except ToolMissing as error:
        raise MungeFault(str(error)) from error
    try:
        answer = link.call("POST", "/v1/munge", token, {"credential": ours})
    except HeadRefused as error:
        if error.status != STATUS_MUNGE:
            raise
        raise MungeFault(f"our credential is not accepted: {error.reason}") from error
    theirs = str(answer.get("credential", "")) if isinstance(answer, dict) else ""
    if not theirs.startswith("MUNGE:"):
        raise MungeFault("the head sent no credential of its own")
    result = run(["unmunge", "-n"], 10.0, stdin=theirs.encode(), check=False)
    if result.returncode != 0:
        kind = _KINDS.get(result.returncode, result.stderr.strip()[-200:] or f"unmunge says {result.returncode}")
        raise MungeFault(f"the head's credential is not accepted here: {kind}")


def decode_key(text: str) -> bytes:
    """The key from its base64 form.

    Raises:
        NotPossible: it is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise NotPossible("the munge key is not base64", "this is a fault of meshd: report it") from None


def digest_of(path: Path) -> str:
    """The fingerprint of the key in a file; "" when there is none."""
    try:
        return fingerprint(path.read_bytes())
    except OSError:
        return ""
