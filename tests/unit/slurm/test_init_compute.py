"""The head as a node of its own cluster: the lines that `meshctl init` writes for it, and how they go again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshd.model.hardware import GpuFact, NodeShape
from meshd.slurm.conf import parse
from meshd.slurm.init.codes import InitRefused, Refusal, Warn
from meshd.slurm.init.compute import taken_back
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import JOB_ENV, HeadCompute, InitInput, InitPlan, render_diff
from meshd.slurm.nodes import PoolLine
from tests.unit.slurm.test_init import DONE_LINKS, NOTHING, WORKSTATION, existing

SHAPE = NodeShape(cpus=32, boards=1, sockets_per_board=1, cores_per_socket=16, threads_per_core=2, memory_mib=64000)
GPUS = tuple(
    GpuFact(index, f"NVIDIA GeForce RTX {model}", f"GPU-{index}", 24564, f"/dev/nvidia{index}")
    for index, model in enumerate(("4090", "3090", "4090"))
)
ON = HeadCompute(on=True, shape=SHAPE, found=GPUS, job_env="A=b\n")
OFF = replace(ON, on=False)
SITE = """\
ClusterName=lab
SlurmctldHost=head(100.64.0.1)
SlurmUser=slurm
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
NodeName=DEFAULT RealMemory=3 Weight=9
NodeName=rack[1-4] CPUs=8
PartitionName=cpu Nodes=rack[1-4] Default=YES
"""
CGROUP = "ConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainDevices=yes\n"
HEAD = "NodeName=head NodeAddr=100.64.0.1"


def a_head(text: str = SITE, compute: HeadCompute | None = ON, **more: object) -> InitInput:
    return existing(text, cgroup_conf=CGROUP, compute=compute, task_prolog="#!/bin/sh\n", **more)


def text_of(plan: InitPlan, name: str) -> str:
    return next(change.new for change in plan.files if change.path.name == name)


def done(have: InitInput, plan: InitPlan) -> InitInput:
    """What is there when the plan was carried out."""
    texts = {change.path.name: change.new for change in plan.files}
    compute = have.compute and replace(have.compute, enabled=True, active=have.compute.on)
    return replace(
        have, slurm_conf=texts.get("slurm.conf", have.slurm_conf), gres_conf=texts.get("gres.conf", have.gres_conf),
        oci_conf=texts.get("oci.conf", have.oci_conf), head_task_prolog=have.task_prolog, links=DONE_LINKS,
        head_job_env=texts.get(JOB_ENV.name, have.head_job_env), compute=compute,
    )  # fmt: skip


def line(text: str, start: str) -> dict[str, str]:
    found = [one for one in text.splitlines() if one.startswith(start)]
    assert len(found) == 1, text
    return dict(word.split("=", 1) for word in found[0].split())


def refusal(have: InitInput) -> Refusal:
    with pytest.raises(InitRefused) as caught:
        plan_init(have)
    assert caught.value.cure
    return caught.value.code


def test_the_head_gets_its_lines() -> None:
    plan = plan_init(a_head())
    text = text_of(plan, "slurm.conf")
    node = line(text, HEAD)
    assert node["Gres"] == "gpu:rtx-3090:1,gpu:rtx-4090:2"
    assert (node["CPUs"], node["CoresPerSocket"], node["ThreadsPerCore"]) == ("32", "16", "2")
    assert (node["RealMemory"], node["MemSpecLimit"], node["CoreSpecCount"]) == ("60800", "8000", "2")
    assert (node["State"], node["Feature"]) == ("UNKNOWN", "head,rtx-3090,rtx-4090")
    partition = line(text, "PartitionName=head ")
    assert (partition["Nodes"], partition["Default"], partition["PriorityTier"]) == ("head", "NO", "2")
    assert text.splitlines().index("# END meshd: the head computes") < text.splitlines().index(
        "NodeName=DEFAULT RealMemory=3 Weight=9"
    ), "it inherits nothing"
    assert "SuspendExcNodes=head" in text.splitlines()
    assert text_of(plan, "gres.conf").splitlines()[-3:-1] == [
        "NodeName=head Name=gpu Type=rtx-3090 File=/dev/nvidia1",
        "NodeName=head Name=gpu Type=rtx-4090 File=/dev/nvidia[0,2]",
    ]
    assert text_of(plan, JOB_ENV.name) == "A=b\n"
    assert plan.compute is not None
    assert (plan.compute.enable, plan.compute.restart, plan.restart_slurmctld) == (True, True, True)
    assert "# head: slurmd is enabled: it starts at boot\n" in render_diff(plan)
    assert not {f.code for f in plan.findings} & {Warn.HEAD_UNCONSTRAINED, Warn.HEAD_NODE_EXISTS}


@pytest.mark.parametrize("have", [a_head(), replace(NOTHING, compute=ON), a_head("MaxNodeCount=4\n" + SITE)])
def test_a_second_run_changes_nothing(have: InitInput) -> None:
    first = plan_init(have)
    then = plan_init(done(have, first))
    assert then.empty, render_diff(then)
    assert then.compute is not None
    assert not then.compute.restart


@pytest.mark.parametrize("text", [SITE, SITE.replace("\n", "\r\n"), SITE + "SuspendExcNodes=rack[1-2],rack4\n"])
def test_taken_back_the_files_are_as_without_it(text: str) -> None:
    without = a_head(text, None)
    plain = done(without, plan_init(without))
    have = replace(plain, compute=ON)
    on = done(have, plan_init(have))
    off = plan_init(replace(on, compute=OFF))
    back = done(on, off)
    assert (back.slurm_conf, back.gres_conf) == (plain.slurm_conf, plain.gres_conf)
    assert off.compute is not None
    assert off.compute.actions == ("slurmd is stopped and disabled, as before",)
    assert plan_init(replace(back, compute=OFF)).empty
    assert on.slurm_conf is not None
    assert taken_back(on.slurm_conf, on.gres_conf, "head") == (plain.slurm_conf, plain.gres_conf, False)


def test_slurmd_stays_on_where_it_was_on_before() -> None:
    have = a_head(compute=replace(ON, enabled=True, active=True))
    plan = plan_init(have)
    assert plan.compute is not None
    assert (plan.compute.enable, plan.compute.restart) == (False, True)
    off = plan_init(replace(done(have, plan), compute=OFF)).compute
    assert off is not None
    assert off.actions == ("slurmd is stopped",)


def test_more_hardware_is_seen_and_never_while_jobs_run() -> None:
    have = done(a_head(), plan_init(a_head()))
    more = replace(ON, shape=replace(SHAPE, memory_mib=128000), enabled=True, active=True)
    text = text_of(plan_init(replace(have, compute=more)), "slurm.conf")
    assert line(text, HEAD)["RealMemory"] == "121600"
    for jobs in (("7",), None):
        assert refusal(replace(have, compute=replace(more, jobs=jobs))) is Refusal.HEAD_BUSY
        assert refusal(replace(have, compute=replace(OFF, jobs=jobs))) is Refusal.HEAD_BUSY
        same = replace(ON, enabled=True, active=True, jobs=jobs)
        assert plan_init(replace(have, compute=same)).empty, "nothing changes for them"


def test_what_is_kept_for_the_desktop() -> None:
    mine = replace(ON, gpus=(1,), core_spec_count=4, mem_spec_limit_mib=20000, partition="desk", default=True)
    plan = plan_init(a_head(SITE.replace(" Default=YES", ""), mine))
    text = text_of(plan, "slurm.conf")
    node = line(text, HEAD)
    assert (node["Gres"], node["CoreSpecCount"], node["MemSpecLimit"]) == ("gpu:rtx-3090:1", "4", "20000")
    assert line(text, "PartitionName=desk ")["Default"] == "YES"
    none = plan_init(a_head(compute=replace(ON, gpus=())))
    assert "Gres=" not in next(x for x in text_of(none, "slurm.conf").splitlines() if x.startswith(HEAD))
    assert "Type=" not in text_of(none, "gres.conf")


@pytest.mark.parametrize(
    ("cores", "memory_mib", "kept"),
    [(1, 3000, (0, 1500)), (2, 8000, (1, 2048)), (8, 16000, (1, 2048)), (64, 512000, (2, 64000))],
)
def test_how_much_is_kept_by_itself(cores: int, memory_mib: int, kept: tuple[int, int]) -> None:
    shape = NodeShape(cores, 1, 1, cores, 1, memory_mib)
    node = line(text_of(plan_init(a_head(compute=replace(ON, shape=shape))), "slurm.conf"), HEAD)
    assert (int(node["CoreSpecCount"]), int(node["MemSpecLimit"])) == kept


@pytest.mark.parametrize(
    ("compute", "code"),
    [
        (replace(ON, shape=None), Refusal.PACKAGES_MISSING),
        (replace(ON, gpus=(3,)), Refusal.HEAD_HARDWARE),
        (replace(ON, gpu_fault="Driver/library version mismatch"), Refusal.HEAD_HARDWARE),
        (replace(ON, found=(replace(GPUS[0], device=""),)), Refusal.HEAD_HARDWARE),
        (replace(ON, core_spec_count=16), Refusal.HEAD_HARDWARE),
        (replace(ON, mem_spec_limit_mib=60500), Refusal.HEAD_HARDWARE),
        (replace(ON, partition="h100"), Refusal.PARTITION_NAME_TAKEN),
        (replace(ON, partition="cpu"), Refusal.PARTITION_NAME_TAKEN),
    ],
)
def test_what_is_refused(compute: HeadCompute, code: Refusal) -> None:
    assert refusal(a_head(compute=compute)) is code


def test_a_faulty_gpu_that_is_not_used_is_no_obstacle() -> None:
    assert plan_init(a_head(compute=replace(ON, gpus=(0,), gpu_fault="GPU 3 is lost"))).compute


def test_a_head_with_the_name_of_a_slot() -> None:
    pools = (PoolLine("tower", "", 4, "h100", 8, 8, 1024),)
    assert refusal(a_head(head="tower-3", pools=pools)) is Refusal.NODE_NAME_TAKEN


def test_a_line_of_the_users_own_stays() -> None:
    have = a_head(WORKSTATION)
    plan = plan_init(have)
    assert [f.code for f in plan.findings if f.code is Warn.HEAD_NODE_EXISTS]
    assert plan.compute is None
    assert "BEGIN meshd" not in text_of(plan, "slurm.conf")
    assert "NodeName=head Name" not in text_of(plan, "gres.conf")
    both = plan_init(a_head())
    text = text_of(both, "slurm.conf") + "NodeName=head CPUs=3\n"
    assert refusal(replace(done(a_head(), both), slurm_conf=text)) is Refusal.NODE_NAME_TAKEN


def test_what_does_not_hold_jobs_back_is_said() -> None:
    for have in (
        replace(a_head(), cgroup_conf="ConstrainCores=yes\n"),
        replace(a_head(), cgroup_conf=None),
        a_head(SITE.replace("task/cgroup", "task/affinity")),
        a_head(SITE.replace("CR_Core_Memory", "CR_Core")),
    ):
        assert Warn.HEAD_UNCONSTRAINED in {f.code for f in plan_init(have).findings}
    assert Warn.HEAD_UNCONSTRAINED not in {f.code for f in plan_init(replace(NOTHING, compute=ON)).findings}


def test_two_default_partitions() -> None:
    assert Warn.TWO_DEFAULTS in {f.code for f in plan_init(a_head(compute=replace(ON, default=True))).findings}


def test_no_word_about_it_where_nobody_asked() -> None:
    plan = plan_init(a_head(compute=None))
    assert plan.compute is None
    assert not {"NodeName=head", "SuspendExcNodes"} & set(parse(text_of(plan, "slurm.conf")).render().split("="))
