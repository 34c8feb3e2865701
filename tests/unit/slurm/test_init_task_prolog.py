"""TaskProlog: set only where no job can fail for it, and never over the user's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meshd.api.schema import NodeRow, NodesView, SectionRow
from meshd.cli.errors import CliError
from meshd.cli.init_input import without_task_prolog
from meshd.config import PoolSettings, Settings
from meshd.runtime.rootfs import RootFs
from meshd.slurm.conf import parse
from meshd.slurm.init.apply import apply_init
from meshd.slurm.init.codes import Warn
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.task_prolog import TASK_PROLOG
from meshd.slurm.init.tree import read_tree
from meshd.slurm.init.types import InitInput, InitPlan
from meshd.slurm.nodes import PoolLine

POOL = PoolLine("h100", "", 4, "h100", 8, 8, 1024)
SITE = "ClusterName=lab\nSlurmctldHost=head(100.64.0.1)\nSlurmUser=slurm\n"
HAVE = InitInput("lab", "head", "100.64.0.1", SITE, pools=(POOL,), task_prolog="#!/bin/sh\n")
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def said(plan: InitPlan) -> tuple[str | None, bool]:
    """What TaskProlog becomes, and whether a person is asked to do something."""
    new = next((change.new for change in plan.files if change.path.name == "slurm.conf"), SITE)
    value = [line.value("TaskProlog") for line in parse(new).lines if line.value("TaskProlog")]
    return (value[-1] if value else None), Warn.TASK_PROLOG in {finding.code for finding in plan.findings}


@pytest.mark.parametrize(
    ("conf", "parts", "becomes", "asked"),
    [
        ("", {}, str(TASK_PROLOG), False),
        ("NodeName=head CPUs=4\n", {}, str(TASK_PROLOG), False),
        ("NodeName=gpu0 NodeHostname=head CPUs=4\n", {}, str(TASK_PROLOG), False),
        ("NodeName=head,own[1-3] CPUs=4\n", {}, None, True),
        ("TaskProlog=/etc/slurm/mine.sh\n", {}, "/etc/slurm/mine.sh", True),
        (f"TaskProlog={TASK_PROLOG}\nNodeName=own[1-3] CPUs=4\n", {}, str(TASK_PROLOG), False),
        ("", {"without_task_prolog": ("h100-1",)}, None, True),
        ("", {"task_prolog": ""}, None, False),
    ],
)
def test_when_it_is_set(conf: str, parts: dict[str, Any], becomes: str | None, asked: bool) -> None:
    assert said(plan_init(replace(HAVE, slurm_conf=SITE + conf, **parts))) == (becomes, asked)


def test_the_program_is_written_on_the_head_and_again_when_it_is_another(tmp_path: Path) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text(SITE)
    apply_init(plan_init(HAVE), NOW, RootFs(tmp_path))
    program = tmp_path / str(TASK_PROLOG).lstrip("/")
    assert (program.read_text(), program.stat().st_mode & 0o777) == ("#!/bin/sh\n", 0o755)
    older = replace(HAVE, task_prolog="newer", head_task_prolog="#!/bin/sh\n")
    (change,) = [one for one in plan_init(older).files if one.path == TASK_PROLOG]
    assert (change.old, change.new) == ("#!/bin/sh\n", "newer")
    same = replace(HAVE, head_task_prolog=HAVE.task_prolog)
    assert not [one for one in plan_init(same).files if one.path == TASK_PROLOG]


NODES_CONF = (
    "NodeName=h100-1 NodeAddr=100.64.0.7 CPUs=8 State=UNKNOWN\nNodeName=h100-2 NodeAddr=100.64.0.8 State=UNKNOWN\n"
    "NodeName=h100-3 NodeAddr=239.192.0.3 State=DOWN\nNodeName=own-1 NodeAddr=10.0.0.1 State=UNKNOWN\n"
)
SETTINGS = Settings(pools={"h100": PoolSettings(gpu="h100")})
TREE = read_tree(HAVE.conf_dir / "slurm.conf", {HAVE.conf_dir / "slurm.conf": NODES_CONF}.get)


def row(slot: str, *sections: SectionRow, older: bool = False) -> NodeRow:
    settings = None if older else list(sections)
    return NodeRow(machine=f"lab-{slot}", slot=slot, pool="h100", provider="aws", phase="ready", since=NOW,
                   settings=settings)  # fmt: skip


def test_which_nodes_may_lack_the_program() -> None:
    has = SectionRow(name="job_env", state="applied", since=NOW)
    rows = [row("h100-1", has), row("h100-2", older=True)]
    assert without_task_prolog(TREE, SETTINGS, lambda: NodesView(at=NOW, nodes=rows)) == ("h100-2",)
    rows[1] = row("h100-2", has.model_copy(update={"state": "failed"}))
    assert without_task_prolog(TREE, SETTINGS, lambda: NodesView(at=NOW, nodes=rows)) == ("h100-2",)

    def silent() -> NodesView:
        raise CliError("meshd does not answer", "start it")

    assert without_task_prolog(TREE, SETTINGS, silent) == ("h100-1", "h100-2"), "nobody can say"
    assert without_task_prolog(TREE, SETTINGS, None) == ("h100-1", "h100-2")
