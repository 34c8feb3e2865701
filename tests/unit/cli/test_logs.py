"""`meshctl logs`."""

from __future__ import annotations

import pytest

from meshd.api import endpoints
from meshd.api.schema import LogRow, LogsQuery, LogsView, ReportRow
from meshd.cli.commands.logs import new_lines
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW

VIEW = LogsView(
    machine="lab-a100-1-k7q2mz", slot="a100-1", provider="aws", phase="gone", problem="no agent",
    logs=[
        LogRow(part="stage1", source="kept", at=NOW, text="meshd: one\nevil \x1b]0;title\x07"),
        LogRow(part="slurmd", source="agent", at=NOW, text="two"),
    ],
    reports=[ReportRow(at=NOW, text="packages: \x1b[31mapt-get failed")], notes=["its agent is silent"],
)  # fmt: skip


def test_the_logs_are_shown(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(endpoints.LOGS, VIEW)
    ran = meshctl("logs", "a100-1", "-n", "7", "--part", "slurmd", "--part", "stage1")
    assert ran.code == 0
    assert head.asked(endpoints.LOGS) == [LogsQuery(machine="a100-1", lines=7, part=("slurmd", "stage1"))]
    for words in ("lab-a100-1-k7q2mz (a100-1, aws): gone", "apt-get failed", "==> slurmd (from its agent) <==\ntwo\n"):
        assert words in ran.out
    assert "\x1b" not in ran.out and "\x07" not in ran.out
    assert "its agent is silent" in ran.err and "its agent" not in ran.out.replace("from its agent", "")
    document = meshctl("logs", "a100-1", "--part", "slurmd", "-o", "json")
    assert head.asked(endpoints.LOGS)[-1].part == ("slurmd",)
    assert document.json()["logs"][1] == {
        "part": "slurmd", "source": "agent", "at": document.json()["logs"][1]["at"], "text": "two",
    }  # fmt: skip
    assert "\x1b" not in document.out


def test_nothing_is_an_error(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    head.give(endpoints.LOGS, VIEW.model_copy(update={"logs": [], "reports": []}))
    assert meshctl("logs", "a100-1").code == 1
    assert meshctl("logs", "a100-1", "--part", "nonsense").code == 2
    assert meshctl("logs", "a100-1", "-f", "-o", "json").code == 2
    assert meshctl("logs", "a100-1", "-n", "0").code == 2


def test_follow_prints_what_is_new_until_the_machine_is_gone(
    head: SimHead, served: SimHead, meshctl: Meshctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.cli.commands.logs.FOLLOW_S", 0.0)

    def view(phase: str, **texts: str) -> LogsView:
        rows = [LogRow(part=part, source="agent", at=NOW, text=text) for part, text in texts.items()]
        return VIEW.model_copy(update={"phase": phase, "logs": rows})

    head.give(
        endpoints.LOGS, view("ready", slurmd="a\nb"), view("ready", slurmd="0\na\nb\nc", agent="x"),
        view("gone", slurmd="b\nc\nd", agent="x"),
    )  # fmt: skip
    ran = meshctl("logs", "a100-1", "-f")
    assert ran.code == 0
    said = [line for line in ran.out.splitlines() if line]
    assert said == [
        "==> slurmd (from its agent) <==", "a", "b", "c", "==> agent (from its agent) <==", "x",
        "==> slurmd (from its agent) <==", "d",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "ab", "ab"), ("ab", "ab", ""), ("ab", "abc", "c"), ("ab", "bcd", "cd"), ("ab", "xabc", "c"),
        ("ab", "xyz", "xyz"), ("aa", "aaa", ""), ("aba", "abab", "b"), ("ab", "", ""),
    ],
)  # fmt: skip
def test_new_lines(before: str, now: str, new: str) -> None:
    assert list(new_lines(list(before), list(now))) == list(new)
