"""The join: from a bare machine to one that shares the cluster's munge key. slurmd comes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import facts, meshnet, munge, pod
from .bounded import begin
from .console import say
from .errors import HeadUnreachable, MungeFault, NotPossible
from .files import read_json
from .gpu import open_devices
from .headlink import HeadLink
from .node import Node
from .packages import ensure
from .users import Account, align, matches

JOIN_TIMEOUT_S = 60.0


def join(
    node: Node, link: HeadLink, token: str, report: Callable[[str, str], None] = lambda _stage, _text: None
) -> None:
    """Ask the head to accept this machine, and save its answer before using it. Idempotent.

    A machine that the head accepted before shows its node token, since its join token is no longer valid.

    Args:
        node: this machine.
        link: to the head.
        token: the join token; unused where there is a node token.
        report: called with (stage, text) for each failure that may pass.

    Raises:
        HeadUnreachable: try again.
        HeadRefused: the head says why.
        NotPossible, ToolFailed: a needed program is missing and cannot be installed.
    """
    token = node.state.node_token or token
    if not token:
        raise NotPossible("this machine has neither a join token nor a node token", "rent it again")
    if facts.missing_programs():
        _install(node, link, token, report)
    looks, node.looks = node.looks, None
    body: dict[str, Any] = {
        "facts": facts.gather(node.paths, link.clock_skew_s, systemd=node.systemd, tun=node.tun, looks=looks),
        "munge_key": munge.digest_of(node.paths.munge_key),
    }
    if instance_id := str(read_json(node.paths.join_file).get("instance_id", "")):
        body["facts"]["instance_id"] = instance_id  # all machines of a gang have one join token
    answer = link.call("POST", "/v1/join", token, body, JOIN_TIMEOUT_S)
    try:
        sent = answer["munge_key_b64"]
        key = munge.decode_key(sent) if sent else node.paths.munge_key.read_bytes()
        _take(node, answer)
    except (KeyError, TypeError, ValueError) as error:
        raise HeadUnreachable(f"the head's answer to the join cannot be used ({type(error).__name__})") from None
    node.save()
    say(f"accepted as {node.state.slot} of {node.state.cluster}", urgent=True)
    _align(node)
    # Before munged starts: its credentials hold the address of the machine's host name.
    node.keep_names(_roster(answer))
    if munge.put_key(node.paths, key, node.munge) and munge.answers(node.paths):
        node.munged.restart()
    begin("the start of munged", node.munged.start_soon)  # where that fails, `configure` starts it and raises
    node.sections.take(answer.get("sections"))
    ensure(node.paths, [str(name) for name in answer.get("packages") or []], lambda text: report("packages", text))


def configure(node: Node, link: HeadLink, report: Callable[[str, str], None] = lambda _stage, _text: None) -> None:
    """Start munged and prove it with the head, open the GPUs, prepare slurmd. Idempotent.

    Args:
        node: this machine.
        link: to the head.
        report: called with (stage, text) for each failure that may pass.

    Raises:
        NotPossible, ToolFailed: libmeshnet is needed here, and does not work.
        MungeFault: key or clock differ from the head's, or munged does not run.
        HeadUnreachable, HeadRefused: the head did not take part in the proof.
    """
    open_devices(node.paths.dev)
    if not node.systemd:
        pod.build(node.paths, lambda text: report("packages", text))
    meshnet.prepare(node, lambda text: report("packages", text))  # before munged and slurmd, which need it
    node.prepare_slurmd()
    if not munge.answers(node.paths):
        munge.put_dirs(node.paths, node.munge)
        node.munged.start()
    munge.wait_until_up(node.paths, node.munged)
    try:
        munge.prove(link, node.state.node_token)
    except MungeFault:
        # munged may have started with an older key
        node.munged.restart()
        munge.wait_until_up(node.paths, node.munged)
        munge.prove(link, node.state.node_token)


def _install(node: Node, link: HeadLink, token: str, report: Callable[[str, str], None]) -> None:
    lacking = facts.missing_programs()
    needs = link.call("GET", "/v1/needs", token)
    if not isinstance(needs, dict):
        raise HeadUnreachable("the head did not say what is needed")
    names = [str(name) for name in needs.get("packages") or []]
    if not names:
        raise NotPossible(f"this image lacks {', '.join(lacking)}", "use an image with Slurm and munge", "packages")
    for name in ("slurm", "munge"):
        align(node.paths, Account(name, int(needs[f"{name}_uid"]), int(needs[f"{name}_gid"])), [])
    ensure(node.paths, names, lambda text: report("packages", text))


def _take(node: Node, answer: dict[str, Any]) -> None:
    state = node.state
    state.node_token = str(answer["node_token"])
    state.slot = str(answer["slot"])
    state.address = _roster(answer).get(state.slot, "")
    state.cluster = str(answer["cluster"])
    state.conf_server = str(answer["conf_server"])
    state.slurmd_args = [str(word) for word in answer.get("slurmd_args") or []]
    state.slurm_uid, state.slurm_gid = int(answer["slurm_uid"]), int(answer["slurm_gid"])
    state.munge_uid, state.munge_gid = int(answer["munge_uid"]), int(answer["munge_gid"])
    state.poll_hold_s = float(answer.get("poll_hold_s") or state.poll_hold_s)
    state.dead_man_s = float(answer.get("dead_man_s") or 0.0)
    state.roster_version = int(answer.get("roster_version") or 0)
    state.spot_cloud = str(answer.get("spot_cloud") or "")
    state.left = False
    state.slurmd_wanted = state.slurmd_wanted or answer.get("slurmd_wanted") is True


def _align(node: Node) -> None:
    paths = node.paths
    if not matches(paths, node.munge):
        node.munged.stop()
        align(paths, node.munge, [paths.munge_etc, paths.munge_lib, paths.munge_log, paths.munge_run])
    if not matches(paths, node.slurm):
        align(paths, node.slurm, [paths.slurm_log])


def _roster(answer: dict[str, Any]) -> dict[str, str]:
    roster = answer.get("roster") or {}
    return {str(name): str(address) for name, address in roster.items()}
