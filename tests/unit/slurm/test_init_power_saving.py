"""Power saving: in force with meshd's programs, unless another tool has it. The site's own PrologSlurmctld goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import pytest

from meshd.bootstrap.assets import head_programs
from meshd.runtime.rootfs import RootFs
from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.head_programs import (
    PROGRAMS,
    PROLOG_SLURMCTLD,
    RESUME_PROGRAM,
    SUSPEND_PROGRAM,
    prolog_timeout_s,
    starts_at_once,
)
from meshd.slurm.init.apply import apply_init
from meshd.slurm.init.codes import Warn
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.power_saving import OWN_PROLOG
from meshd.slurm.init.tree import Tree, read_tree
from meshd.slurm.init.types import InitInput, InitPlan
from meshd.slurm.nodes import PoolLine

OLD, NEW = SlurmVersion((22, 5), 8), SlurmVersion((24, 11), 5)
SITE = "ClusterName=lab\nSlurmctldHost=head(100.64.0.1)\nSlurmUser=slurm\n"
HAVE = InitInput(
    "lab", "head", "100.64.0.1", SITE, pools=(PoolLine("h100", "", 4, "h100", 8, 8, 1024),), version=NEW,
    power_programs=head_programs(),
)  # fmt: skip
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def after(plan: InitPlan, have: InitInput) -> Tree:
    new = next((change.new for change in plan.files if change.path.name == "slurm.conf"), have.slurm_conf)
    path = have.conf_dir / "slurm.conf"
    nodes = {have.conf_dir / "nodes.conf": plan.first_nodes_conf}
    return read_tree(path, {**have.texts(), **nodes, path: new}.get, have.version)


@pytest.mark.parametrize("version", [OLD, NEW], ids=str)
def test_it_is_in_force_and_slurm_itself_powers_nothing_down(version: SlurmVersion) -> None:
    have = replace(HAVE, version=version)
    tree = after(plan_init(have), have)
    assert (tree.get("ResumeProgram"), tree.get("SuspendProgram")) == (str(RESUME_PROGRAM), str(SUSPEND_PROGRAM))
    assert 10**9 < int(tree.get("SuspendTime") or 0) < 2**31
    assert (tree.get("ResumeRate"), tree.get("SuspendRate")) == ("0", "0")
    assert "idle_on_node_suspend" in tree.list_of("SlurmctldParameters")
    assert ("cloud" in tree.list_of("PrivateData")) is (version == OLD)
    assert tree.get("PrologSlurmctld") == str(PROLOG_SLURMCTLD)


@pytest.mark.parametrize("line", ["ResumeProgram=/opt/burst/up\n", "SuspendProgram=/opt/burst/down\n"])
def test_another_tool_keeps_all_of_it(line: str) -> None:
    text = SITE + line + "SuspendTime=300\nSuspendTimeout=600\n"
    have = replace(HAVE, slurm_conf=text)
    plan = plan_init(have)
    assert {Warn.POWER_SAVING_TAKEN, Warn.POWER_SAVING} <= {finding.code for finding in plan.findings}
    tree = after(plan, have)
    assert (tree.get("SuspendTime"), tree.get("SuspendTimeout"), tree.get("PrologSlurmctld")) == ("300", "600", None)
    assert line.strip() in next(change.new for change in plan.files if change.path.name == "slurm.conf")


def test_a_prolog_of_the_sites_own_is_run_by_newer_slurm_and_by_ours_on_older_slurm() -> None:
    text = SITE + "PrologSlurmctld=/opt/site/prolog\n"
    new = replace(HAVE, slurm_conf=text)
    plan = plan_init(new)
    assert after(plan, new).get_all("PrologSlurmctld") == ("/opt/site/prolog", str(PROLOG_SLURMCTLD))
    assert OWN_PROLOG not in {change.path for change in plan.files}
    old = replace(new, version=OLD)
    plan = plan_init(old)
    assert after(plan, old).get_all("PrologSlurmctld") == (str(PROLOG_SLURMCTLD),)
    (change,) = [change for change in plan.files if change.path == OWN_PROLOG]
    assert (change.old, change.new, change.owner) == (None, "/opt/site/prolog\n", "")


def test_on_older_slurm_the_file_of_ours_stays_when_there_is_nothing_new() -> None:
    old = replace(HAVE, version=OLD, slurm_conf=SITE + f"PrologSlurmctld={PROLOG_SLURMCTLD}\n", own_prolog="/a\n")
    assert OWN_PROLOG not in {change.path for change in plan_init(old).files}


def test_the_programs_are_root_s_and_brought_up_to_date(tmp_path: Path) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text(SITE)
    apply_init(plan_init(HAVE), NOW, RootFs(tmp_path))
    for path, text in HAVE.power_programs.items():
        program = tmp_path / str(path).lstrip("/")
        assert (program.read_text(), program.stat().st_mode & 0o777) == (text, 0o755)
    older: dict[PurePosixPath, str] = {**HAVE.power_programs, RESUME_PROGRAM: "older"}
    written = {change.path for change in plan_init(replace(HAVE, head_power_programs=older)).files}
    assert written & set(PROGRAMS) == {RESUME_PROGRAM}


def test_what_slurmctld_shows_of_the_prolog() -> None:
    both = f"PrologEpilogTimeout     = 65534\nPrologSlurmctld[0] = /x\nPrologSlurmctld[1] = {PROLOG_SLURMCTLD}\n"
    assert starts_at_once(both)
    assert starts_at_once(f"PrologSlurmctld = {PROLOG_SLURMCTLD}\n")
    assert not starts_at_once("PrologSlurmctld = (null)\n")
    assert prolog_timeout_s(both) is None
    assert prolog_timeout_s("PrologEpilogTimeout     = 300\n") == 300.0


@pytest.mark.parametrize(("rate", "behind"), [("0 nodes/min", False), ("60 nodes/min", True)])
def test_a_running_slurmctld_shows_values_in_its_own_form(rate: str, behind: bool) -> None:
    """As `scontrol show config` of 24.11.5 prints them."""
    new = next(change.new for change in plan_init(HAVE).files if change.path.name == "slurm.conf")
    shown = {"resumerate": rate, "suspendrate": rate, "suspendtime": "2000000000 sec", "resumetimeout": "3600 sec"}
    again = plan_init(replace(HAVE, slurm_conf=new, running=shown))
    assert (Warn.CONTROLLER_BEHIND in {finding.code for finding in again.findings}) is behind
