"""A new login with the auth key that is stored here, or one that the head sends for it: new node key, same machine key, so
the same device and address. A key that was sent for one login is removed when that has come to its end.

It runs in a process of its own, which neither a restart of the agent nor a link that drops can end half way. What came
of it is in a file under the attempt's name: asking for the same attempt again does nothing again.

Facts, measured with tailscale 1.102: 0.06 to 0.11 s, open connections survive. A bad key leaves a zombie: the data
plane goes on, control is lost. The old node key is on disk until the new one is accepted, so a restart, or a login with
an empty key, brings it back.

The peers are greeted afterwards (greeting.py).
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
from .greeting import greet_peers
from .login import STEP_S, complaints, device, recover, until_online
from .node import Node
from .parse import version
from .tailscale import ASK_S, Tailscale, TailscaleFault
from .tools import find, run, search_path

UP_S = 60
ONLINE_S = 20.0
WAIT_S = 130.0
MIN_VERSION = (1, 90)


def reauth(node: Node, attempt: str, key: bytes = b"") -> dict[str, Any]:
    """Have the login made, once for each attempt; {"node_key", "address", "gap_s"}.

    Args:
        node: this machine.
        attempt: a word for this try.
        key: auth key for this attempt alone; empty: the stored one.

    Raises:
        NotPossible: there is no key here, or tailscale is too old.
        TailscaleFault: it failed; the machine is as it was, or the text says what it is.
    """
    if not attempt or not all(char.isalnum() or char == "-" for char in attempt) or len(attempt) > 80:
        raise NotPossible("the attempt has no usable name", "this is a fault of meshd: report it")
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
            with suppress(subprocess.TimeoutExpired):  # its result is there: what keeps it is no concern of ours
                child.wait(ASK_S)
    if not result.get("ok"):
        raise TailscaleFault(str(result.get("detail") or "the login failed without a word"))
    return {name: result.get(name) for name in ("node_key", "address", "gap_s")}


def carry_out(node: Node, attempt: str) -> None:
    """The detached process: log in, see that it worked, put right what did not, write down what came of it."""
    with locked(node.paths.run_dir):  # not while the watch over the login heals one
        if _result(node, attempt) is not None:
            return
        try:
            result: dict[str, Any] = {"ok": True, **login(node)}
        except (NodeError, OSError) as error:
            result = {"ok": False, "detail": str(error)[:1000]}
        finally:
            node.paths.auth_key_once.unlink(missing_ok=True)
        say(f"login anew ({attempt}): {'done' if result['ok'] else result['detail']}")
        result["attempt"] = attempt
        write_atomic(node.paths.reauth_file, json.dumps(result).encode(), 0o600)


def login(node: Node) -> dict[str, Any]:
    """`tailscale up --force-reauth` with the key for this login, else with the stored one.

    Raises:
        TailscaleFault: it was refused or took too long; the old login is back, or the text says that it is not.
    """
    tailscale = Tailscale(node.paths.tailscaled_socket)
    before, peers = device(tailscale.status()), tailscale.peers_in_use()
    words = ["--force-reauth", f"--auth-key=file:{_key_file(node)}", "--accept-risk=lose-ssh", f"--timeout={UP_S}s"]
    began = time.monotonic()
    said = tailscale.up(*words, timeout_s=UP_S + 10.0)
    gap_s = time.monotonic() - began
    after = until_online(tailscale, before["key"], ONLINE_S if not said else 1.0)
    if after is not None:
        greet_peers(tailscale, peers)
        return {"node_key": after["key"], "address": after["address"], "gap_s": round(gap_s, 3)}
    why = said or "; ".join(complaints(tailscale.status())) or "it is not online with a new node key"
    how = recover(node, tailscale)
    raise TailscaleFault(f"the login was not taken: {why}; {how}")


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
    """Start it; the process, where it is a child of ours: it goes on when we end."""
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
