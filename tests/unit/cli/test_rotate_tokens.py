"""`meshctl rotate-key --tokens`."""

from __future__ import annotations

import pytest

from meshd.api.endpoints import NODE_TOKEN_RENEWAL, RENEW_NODE_TOKENS
from meshd.api.schema import TokenNodeRow, TokenRenewalRequest, TokenRenewalView
from meshd.cli.errors import ExitCode
from tests.property.sim import START
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl


def renewal(*states: str, **changes: object) -> TokenRenewalView:
    """Of h100-1, h100-2, ..., each in its state."""
    rows = [
        TokenNodeRow(machine=f"lab-h100-{index}-x", slot=f"h100-{index}", state=state)
        for index, state in enumerate(states, 1)
    ]
    view = TokenRenewalView(at=START, id="t1", active="waiting" in states, by="root", nodes=rows)
    return view.model_copy(update=changes)


def answer(request: TokenRenewalRequest) -> TokenRenewalView:
    preview = {"id": "", "active": False, "steps": ["hand each agent its new token"]} if request.dry_run else {}
    return renewal("waiting", "waiting", compromised=request.compromised, **preview)


@pytest.fixture(autouse=True)
def tokens(head: SimHead) -> None:
    head.give(RENEW_NODE_TOKENS, answer)
    head.give(
        NODE_TOKEN_RENEWAL, TokenRenewalView(at=START), renewal("waiting", "waiting"), renewal("done", "waiting"),
        renewal("done", "done"),
    )  # fmt: skip


def begun(head: SimHead) -> list[TokenRenewalRequest]:
    return [request for request in head.asked(RENEW_NODE_TOKENS) if not request.dry_run]


def test_question_progress_and_end(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    assert not meshctl("rotate-key", "--tokens", "--status", "-o", "json").json()["id"]
    ran = meshctl("rotate-key", "--tokens", "--dry-run")
    assert ran.code == ExitCode.OK and " 1. " in ran.out and not begun(head)
    ran = meshctl("rotate-key", "--tokens", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (ExitCode.USAGE, "needs_yes") and not begun(head)
    ran = meshctl("rotate-key", "--tokens", "--yes")
    assert ran.code == ExitCode.OK and "1 done, 1 waiting" in ran.err and "2 done" in ran.out
    view = meshctl("rotate-key", "--tokens", "--status", "-o", "json").json()
    assert [(node["slot"], node["state"]) for node in view["nodes"]] == [("h100-1", "done"), ("h100-2", "done")]


def test_given_nodes_alone_and_one_that_is_off(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(NODE_TOKEN_RENEWAL, renewal("done", "offline"))
    ran = meshctl("rotate-key", "--tokens", "--node", "h100-[3-4]", "--yes")
    assert ran.code == ExitCode.OK and "warning: " in ran.err
    assert [request.machines for request in begun(head)] == [("h100-3", "h100-4")]


def test_one_that_fails_and_one_that_never_ends(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(NODE_TOKEN_RENEWAL, renewal("done", "failed"))
    assert meshctl("rotate-key", "--tokens", "--yes").code == ExitCode.FAILED
    head.give(NODE_TOKEN_RENEWAL, renewal("done", "waiting"))
    ran = meshctl("rotate-key", "--tokens", "--yes", "--timeout", "500ms")
    assert ran.code == ExitCode.TIMED_OUT and "--status" in ran.err


def test_compromised_ones_are_locked_out(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(NODE_TOKEN_RENEWAL, renewal("locked_out", compromised=True))
    ran = meshctl("rotate-key", "--tokens", "--compromised", "--node", "h100-3", "--yes")
    assert ran.code == ExitCode.OK and begun(head)[-1].compromised


def test_options_that_do_not_go_together(served: SimHead, meshctl: Meshctl) -> None:
    for words in (["--munge"], ["--reauth"], ["--abort"], ["--status", "--dry-run"], ["--waive", "h100-1"]):
        assert meshctl("rotate-key", "--tokens", *words).code == ExitCode.USAGE, words
    assert meshctl("rotate-key", "--node", "h100-1").code == ExitCode.USAGE
