"""How answers look: on narrow and wide terminals, in plain text, shortened, and repeated by --watch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshd.api.endpoints import OFFERS
from meshd.api.schema import AttemptRow, OfferRow, OffersQuery, OffersView, ProblemView
from meshd.api.shorten import merge_attempts, merge_messages, merge_problems, normalise, shorten
from meshd.cli.render.offers import offers
from tests.unit.api.sim_head import SimHead
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import NOW, drawn, on_terminal

EC2 = "InsufficientInstanceCapacity: We currently do not have sufficient p5.48xlarge capacity in the Availability Zone "


def offer(**changes: object) -> OfferRow:
    row: dict[str, object] = {
        "offer": "lambda/us-south-2/gpu_1x_h100_pcie", "provider": "lambda", "region": "us-south-2",
        "instance_type": "gpu_1x_h100_pcie", "gpu": "h100-pcie", "gpus": 1, "gpu_memory_gib": 80, "vcpus": 26,
        "memory_mib": 204800, "usd_per_hour": 2.49, "usd_per_gpu_hour": 2.49, "price_age_s": 20.0,
    }  # fmt: skip
    return OfferRow.model_validate({**row, **changes})


@pytest.mark.parametrize("width", [60, 70, 80, 100])
def test_a_narrow_terminal_keeps_the_provider_and_drops_empty_columns(width: int) -> None:
    view = OffersView(at=NOW, offers=[offer()], total=1, matching=1)
    (table, *_) = offers(view, OffersQuery())
    lines = drawn(width, table)  # type: ignore[arg-type]
    assert "PROVIDER" in lines[0] and "NOTE" not in lines[0]
    assert "NOTE" in " ".join(lines).partition("left out: ")[2], "what is left out is named"
    assert max(map(len, lines)) <= width


def test_a_narrow_terminal_keeps_a_column_with_content() -> None:
    blocked = offer(blocked_until=NOW, blocked_reason="no capacity")
    view = OffersView(at=NOW, offers=[offer(), blocked], total=2, matching=2)
    (table, *_) = offers(view, OffersQuery())
    lines = drawn(80, table)  # type: ignore[arg-type]
    assert "PROVIDER" in lines[0] and "NOTE" in lines[0]


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"CLICOLOR": "0"}, {"TERM": "dumb"}])
def test_plain_text_is_neither_coloured_nor_bold(socket_path: Path, served: SimHead, env: dict[str, str]) -> None:
    served.grow(1)
    for argv in (["nodes"], ["status"], ["explain", "a100"]):
        _, shown = on_terminal(socket_path, argv, "", **env)
        assert not re.search(r"\x1b\[[0-9;]*m", shown), shown


def test_otherwise_a_terminal_gets_colours(socket_path: Path, served: SimHead) -> None:
    served.grow(1)
    _, shown = on_terminal(socket_path, ["nodes"], "")
    assert re.search(r"\x1b\[[0-9;]*m", shown), shown


def test_wide_and_name(head: SimHead, served: SimHead, meshctl: Meshctl, socket_path: Path) -> None:
    head.grow(2)
    head.frozen = True
    head.give(OFFERS, OffersView(at=NOW, offers=[offer()], total=1, matching=1))
    assert meshctl("nodes", "-o", "name").out == "a100-1\na100-2\n"
    assert meshctl("nodes", "a100-2", "-o", "name").out == "a100-2\n"
    assert meshctl("offers", "-o", "name").out == "lambda/us-south-2/gpu_1x_h100_pcie\n"
    _, narrow = on_terminal(socket_path, ["nodes"], "", COLUMNS="60")
    assert "left out" in narrow
    for command in ("nodes", "offers", "status"):
        _, wide = on_terminal(socket_path, [command, "-o", "wide"], "", COLUMNS="60")
        assert "left out" not in wide
    assert meshctl("nodes", "-o", "nonsense").code == 2


def test_watch_shows_it_again(head: SimHead, served: SimHead, socket_path: Path) -> None:
    head.grow(1)
    argv = [sys.executable, "-m", "meshd.cli.main", "--socket", str(socket_path), "nodes", "--watch", "-o", "json"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert len(json.loads(process.stdout.readline())["nodes"]) == 1
            head.set_target(8)
            while len(json.loads(process.stdout.readline())["nodes"]) != 2:
                pass
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130 and "Traceback" not in err


def test_long_texts_are_cut_between_words() -> None:
    assert shorten("a few words", 50) == "a few words"
    assert shorten("one two three four", 12) == "one two ..."
    assert len(shorten("x" * 500)) < 300


def test_the_same_message_of_many_zones_is_shown_once() -> None:
    zones = [f"us-east-1{zone}" for zone in "abcde"]
    text = "; ".join(f"aws/{zone}/p5 is left alone: {EC2}you requested ({zone})" for zone in zones)
    said = merge_messages(f"no offer will do: nobody offers it; {text}; wait")
    assert said.count("InsufficientInstanceCapacity") == 1
    assert "aws/us-east-1a/p5" in said and "and 2 more" in said and said.endswith("; wait")
    assert merge_messages("one; two: three") == "one; two: three"
    assert normalise(f"{EC2}({zones[0]})") == normalise(f"{EC2}({zones[1]})")
    assert normalise("request 0f8fad5b-d9cb-469f-a165-70867728950e") == normalise(
        "request 1f8fad5b-d9cb-469f-a165-70867728950e"
    )


def test_consecutive_attempts_with_the_same_answer_are_one_row() -> None:
    def attempt(zone: str, words: str = EC2, outcome: str = "no_capacity") -> AttemptRow:
        return AttemptRow(at=NOW, machine=f"m-{zone}", offer=f"aws/{zone}/p5", provider="aws", outcome=outcome,
                       words=f"{words}({zone})")  # fmt: skip

    first = [attempt(zone) for zone in ("us-east-1a", "us-east-1b", "us-east-1c")]
    rows = merge_attempts([*first, attempt("us-west-2a", "other "), attempt("us-east-1d")])
    assert [row.offer for row in rows] == ["aws/us-east-1a/p5 and 2 more", "aws/us-west-2a/p5", "aws/us-east-1d/p5"]


def test_problems_that_differ_only_in_the_machine_are_one(head: SimHead, served: SimHead, meshctl: Meshctl) -> None:
    names = [f"lab-h100-{index}-aaaaaa" for index in range(1, 7)]
    problems = [
        ProblemView(severity="warning", text=f"{name} was given up: {EC2}", machine=name, cure="x") for name in names
    ]
    problems.append(ProblemView(severity="warning", text="another", machine=names[0]))
    head.problems += problems
    assert len(merge_problems(problems)) == 2
    shown = meshctl("status").out
    assert shown.count("was given up") == 1 and "and 2 more" in shown
    assert meshctl("status", "--verbose").out.count("was given up") == 6
    assert len(meshctl("status", "-o", "json").json()["problems"]) == 7
