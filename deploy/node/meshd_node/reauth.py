"""Logs in again, with the stored auth key or one that the head sends: new node key, same machine key, so the same
device and address. The agent removes a key for one login afterwards.

The login runs in a process of its own, so that neither a restart of the agent nor a dropped link can interrupt it. A
file keeps the result with the attempt's name: a repeated request for an attempt does not log in again.

Facts, measured with tailscale 1.102: a login takes 0.06 to 0.11 s, and open connections survive. After a bad key the
data plane works but control is lost. The old node key stays on disk until control accepts the new one, so a restart, or
a login with an empty key, restores it.

Afterwards it starts WireGuard sessions with the peers (handshake.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .console import say
from .errors import NodeError, NotPossible
from .files import locked, read_json, write_atomic
from .handshake import prime_sessions
from .login import STEP_S, device, login_errors, recover, until_online
from .node import Node
from .parse import version
from .tailscale import ASK_S, Tailscale, TailscaleFault
from .tools import find, run, search_path

UP_S = 60
ONLINE_S = 20.0
WAIT_S = 130.0
MIN_VERSION = (1, 90)


def reauth(node: Node, attempt: str, key: bytes = b"") -> dict[str, Any]:
    """Run the login once for each attempt. Returns {"node_key", "address", "gap_s"}.

    Args:
        node: this machine.
        attempt: a name for this attempt.
        key: auth key for this attempt only; empty: the stored key.

    Raises:
        NotPossible: no key is stored, or tailscale is too old.
        TailscaleFault: the login failed. The old login is back unless the text says otherwise.
    """
    if not attempt or not all(char.isalnum() or char == "-" for char in attempt) or len(attempt) > 80:
        raise NotPossible("the attempt has no usable name", "this is a fault of meshd: report it")
    if node.own_device:
        raise NotPossible("the owner of this machine has logged it in", "its login is not the cluster's to renew")
    result = _result(node, attempt)
    if result is None:
        if key:
            write_atomic(node.paths.auth_key_once, key, 0o600)
        _check(node)
        child = _detach(node, attempt)
        deadline = time.monotonic() + WAIT_S
        while result is None:
            ended = child is not None and child.poll() is not None
            result = _result(node, attempt)
            if result is None and (ended or time.monotonic() > deadline):
                raise TailscaleFault(f"the login did not come to its end within {WAIT_S:g} s: see the agent's log")
            time.sleep(STEP_S)
        if child is not None:
            with suppress(subprocess.TimeoutExpired):  # its result is there: do not wait any longer
                child.wait(ASK_S)
    if not result.get("ok"):
        raise TailscaleFault(str(result.get("detail") or "the login failed without a reason"))
    return {name: result.get(name) for name in ("node_key", "address", "gap_s")}


def carry_out(node: Node, attempt: str) -> None:
    """In the detached process: log in, verify it, recover after a failure, write the result."""
    with locked(node.paths.run_dir):  # not while LoginWatch repairs the login
        if _result(node, attempt) is not None:
            return
        try:
            result: dict[str, Any] = {"ok": True, **login(node)}
        except (NodeError, OSError) as error:
            result = {"ok": False, "detail": str(error)[:1000]}
        finally:
            node.paths.auth_key_once.unlink(missing_ok=True)
        say(f"new login ({attempt}): {'done' if result['ok'] else result['detail']}")
        result["attempt"] = attempt
        write_atomic(node.paths.reauth_file, json.dumps(result).encode(), 0o600)


def login(node: Node) -> dict[str, Any]:
    """Run `tailscale up --force-reauth` with the key for this login, or the stored one.

    Raises:
        TailscaleFault: refused, or too slow. The old login is back unless the text says otherwise.
    """
    tailscale = Tailscale(node.paths.tailscaled_socket)
    before, peers = device(tailscale.status()), tailscale.peers_in_use()
    words = ["--force-reauth", f"--auth-key=file:{_key_file(node)}", "--accept-risk=lose-ssh", f"--timeout={UP_S}s"]
    began = time.monotonic()
    said = tailscale.up(*words, timeout_s=UP_S + 10.0)
    gap_s = time.monotonic() - began
    after = until_online(tailscale, before["key"], ONLINE_S if not said else 1.0)
    if after is not None:
        prime_sessions(tailscale, peers)
        return {"node_key": after["key"], "address": after["address"], "gap_s": round(gap_s, 3)}
    why = said or "; ".join(login_errors(tailscale.status())) or "it is not online with a new node key"
    how = recover(node, tailscale)
    raise TailscaleFault(f"the login was refused: {why}; {how}")


def _key_file(node: Node) -> Path:
    once = node.paths.auth_key_once
    return once if once.exists() else node.paths.auth_key


def _check(node: Node) -> None:
    if not _key_file(node).exists():
        raise NotPossible("no auth key is stored here", "store one first")
    found = version(run(["tailscale", "version"], 15.0).stdout)
    words = tuple(int(word) for word in found.split(".")[:2] if word.isdigit())
    if words < MIN_VERSION:
        raise NotPossible(
            f"tailscale {found or 'of an unknown version'} would drop the link", "1.90 or newer is needed"
        )


def _detach(node: Node, attempt: str) -> subprocess.Popen[bytes] | None:
    """Start the detached process. Returns it where it is our child; it outlives the agent."""
    paths = node.paths
    argv = [sys.executable, str(paths.agent), "--root", str(paths.root), "--proc", str(paths.proc), "--systemctl",
            node.systemctl, "--attempt", attempt, "reauth"]  # fmt: skip
    if node.systemd and find("systemd-run"):
        unit = f"meshd-reauth-{attempt}"
        active = run([node.systemctl, "is-active", "--quiet", unit], 15.0, check=False).returncode == 0
        if not active:
            run(["systemd-run", f"--unit={unit}", "--collect", "--quiet", "--property=UMask=0077", *argv], 30.0)
        return None
    paths.agent_log.parent.mkdir(parents=True, exist_ok=True)
    with paths.agent_log.open("ab") as log:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={"PATH": search_path()}
        )  # fmt: skip


def _result(node: Node, attempt: str) -> dict[str, Any] | None:
    result = read_json(node.paths.reauth_file)
    return result if result.get("attempt") == attempt else None
