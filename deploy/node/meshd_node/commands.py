"""The commands that the head may send. The agent does nothing else at the head's request."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from . import erase, munge
from .console import say
from .errors import NodeError, NotPossible
from .files import sha256_of, write_atomic
from .handshake import prime_session
from .node import Node
from .tailscale import Tailscale

TOKEN = re.compile(r"[0-9a-f]{32,128}\Z")
DETAIL_CHARS_MAX = 1000

Args = dict[str, Any]
Data = dict[str, Any]


def carry_out(node: Node, command: dict[str, Any]) -> dict[str, Any]:
    """Run a command, or return its earlier result when it ran before.

    Args:
        node: this machine.
        command: {"id", "verb", "args"}.

    Returns:
        {"id", "ok", "detail", "data"}; `detail` says why it failed.
    """
    command_id, verb = str(command.get("id", "")), str(command.get("verb", ""))
    if command_id in node.state.done:
        return {"data": {}, **node.state.done[command_id], "id": command_id}
    args = command.get("args")
    work = VERBS.get(verb)
    result: dict[str, Any] = {"id": command_id, "ok": False, "detail": "", "data": {}}
    if work is None:
        result["detail"] = f"this agent does not know the verb {verb[:40]!r}"
    else:
        say(f"carrying out {verb}")
        try:
            result["data"] = work(node, args if isinstance(args, dict) else {})
            result["ok"] = True
        except (NodeError, OSError) as error:
            result["detail"] = str(error)[:DETAIL_CHARS_MAX]
        except (KeyError, TypeError, ValueError) as error:
            result["detail"] = f"the arguments of {verb} cannot be used ({type(error).__name__})"
        if not result["ok"]:
            say(f"{verb} failed: {result['detail']}")
    node.state.remember(command_id, {name: result[name] for name in ("ok", "detail")})
    node.save()
    return result


def _roster(node: Node, args: Args) -> Data:
    roster = {str(name): str(address) for name, address in dict(args["roster"]).items()}
    changed = node.keep_names(roster)
    node.state.roster_version = int(args["version"])
    return {"changed": changed}


def _munge_key(node: Node, args: Args) -> Data:
    action = str(args.get("action", "put"))
    if action == "switch":
        return _switch_munge_key(node, args)
    if action == "forget":
        munge.forget_keys(node.paths)
        return {}
    if action not in ("put", "stage"):
        raise NotPossible(f"munge_key has no action {action[:20]!r}", "use put, stage, switch or forget")
    key = munge.decode_key(str(args["key_b64"]))
    if action == "stage":
        munge.stage_key(node.paths, key, node.munge)
    else:
        munge.put_key(node.paths, key, node.munge)
        node.munge_changed = True
        node.munged.restart()
        munge.wait_until_up(node.paths, node.munged)
    return {"fingerprint": munge.fingerprint(key)}


def _switch_munge_key(node: Node, args: Args) -> Data:
    """The time in the command and the times in the answer are by the head's clock."""
    skew_s = node.clock_skew_s() if "at_unix" in args else 0.0
    node.munge_changed = True
    change = munge.switch_key(
        node.paths, node.munged, node.munge, str(args["fingerprint"]),
        float(args.get("at_unix", 0.0)) + skew_s, float(args.get("away_s", 0.0)),
    )  # fmt: skip
    if not change.started_unix:
        return {}
    return {"stopped_unix": change.stopped_unix - skew_s, "started_unix": change.started_unix - skew_s}


def _auth_key(node: Node, args: Args) -> Data:
    write_atomic(node.paths.auth_key, _key(args), 0o600)
    return {"sha256": sha256_of(node.paths.auth_key)}


def _spare_key(node: Node, args: Args) -> Data:
    write_atomic(node.paths.spare_key, _key(args), 0o600)
    return {"sha256": sha256_of(node.paths.spare_key)}


def _node_token(node: Node, args: Args) -> Data:
    """Save the token durably before the next call uses it: that call invalidates the old token."""
    token = str(args["token"])
    if not TOKEN.match(token):
        raise NotPossible("the node token has characters that no token has", "this is a fault of meshd: report it")
    write_atomic(node.paths.node_token, token.encode() + b"\n", 0o600)
    node.state.node_token = token
    return {"generation": int(args["generation"])}


def _reauth(node: Node, args: Args) -> Data:
    from . import reauth  # here, as others below: no join needs it

    return reauth.reauth(node, str(args["attempt"]), _key(args) if "key" in args else b"")


def _greet(node: Node, args: Args) -> Data:
    """Start a WireGuard session with a node that shares a job with this one and has a new node key."""
    address, node_key = str(ip_address(str(args["address"]))), str(args["node_key"])
    return {"answered": prime_session(Tailscale(node.paths.tailscaled_socket), address, node_key)}


def _key(args: Args) -> bytes:
    key = str(args["key"]).strip()
    if not key or any(not 33 <= ord(char) <= 126 for char in key):
        raise NotPossible("the auth key is empty or has characters that no key has", "send a real one")
    return key.encode() + b"\n"


def _start_slurmd(node: Node, args: Args) -> Data:
    _take_slurmd_args(node, args)
    node.prepare_slurmd()
    node.slurmd.start()
    node.state.slurmd_wanted = True
    return {"alive": node.slurmd.alive()}


def _restart_slurmd(node: Node, args: Args) -> Data:
    _take_slurmd_args(node, args)
    if (lacking := node.sections.lacking()) and not node.slurmd.alive():
        raise NotPossible(f"slurmd waits for {lacking}", "see what keeps it")
    node.prepare_slurmd()
    node.slurmd.restart()
    node.state.slurmd_wanted = True
    return {"alive": node.slurmd.alive()}


def _reload_slurmd(node: Node, _args: Args) -> Data:
    node.slurmd.reload()
    return {"alive": node.slurmd.alive()}


def _section(node: Node, args: Args) -> Data:
    node.sections.put(str(args["name"]), str(args["digest"]), dict(args["value"]))
    return {}


def _collect_logs(node: Node, args: Args) -> Data:
    from . import logs

    parts = args.get("parts", ())
    return {"logs": logs.collect(node, int(args.get("lines", 200)), [str(part) for part in parts])}


def _leave(node: Node, _args: Args) -> Data:
    """The head gives the machine back: erase its secrets. The agent keeps its token in memory to reach the head."""
    from . import shares

    node.state.slurmd_wanted = False
    node.state.left = True
    try:
        node.slurmd.stop()
    finally:
        erased = erase.erase_secrets(node.paths)
    shares.leave(node)
    node.munged.stop()
    return {"alive": node.slurmd.alive(), "erased": len(erased)}


def _take_slurmd_args(node: Node, args: Args) -> None:
    if "conf_server" in args:
        node.state.conf_server = str(args["conf_server"])
    if "slurmd_args" in args:
        node.state.slurmd_args = [str(word) for word in args["slurmd_args"]]
    if "slurm_settings" in args:
        node.state.slurm_settings = {str(key): str(value) for key, value in dict(args["slurm_settings"]).items()}


VERBS: dict[str, Callable[[Node, Args], Data]] = {
    "roster": _roster,
    "munge_key": _munge_key,
    "auth_key": _auth_key,
    "spare_key": _spare_key,
    "node_token": _node_token,
    "reauth": _reauth,
    "greet": _greet,
    "start_slurmd": _start_slurmd,
    "restart_slurmd": _restart_slurmd,
    "reload_slurmd": _reload_slurmd,
    "section": _section,
    "collect_logs": _collect_logs,
    "leave": _leave,
}
