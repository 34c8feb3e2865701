"""PURE: the head as a node of its own cluster: its lines in slurm.conf and gres.conf, and what goes with them.

The lines stand in the user's files, in a marked block, and not in those that meshd's daemon writes: so the head is to
meshd what every node of the site's own is. No pool has it, nothing rents or gives it back, and it computes also while
meshd does not run. `meshctl init` measures it again and shows what has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import PurePosixPath

from ClusterShell.NodeSet import NodeSet

from meshd.gpus import normalise
from meshd.model.hardware import GpuFact, NodeShape
from meshd.model.ids import slot_index
from meshd.plan.limits import (
    WORD,
    as_word,
    cpus_of,
    gpus_fault,
    memory_promised_mib,
    shape_fault,
)
from meshd.plan.slurm_lines import PARTITION_PLAIN
from meshd.slurm.conf import Conf, parse
from meshd.slurm.init import marked
from meshd.slurm.init.amend import Editor
from meshd.slurm.init.codes import InitRefused, Refusal, Warn
from meshd.slurm.init.names import own_nodes
from meshd.slurm.init.types import JOB_ENV, ComputePlan, FileChange, HeadCompute, InitInput

BLOCK = "the head computes"
UNIT = "slurmd.service"
PACKAGE = "slurmd"
FEATURE = "head"
EXCLUDED = "SuspendExcNodes"

MEMORY_LEAST_MIB = 512
"""What must be left for jobs."""
MEMORY_KEPT_LEAST_MIB = 2048
MANY_CORES = 16
PRIORITY_TIER = 2
"""A job that names several partitions (`-p head,h100`) gets the head first, where it is free: meshd's have 1."""

_WAS_OFF = f"{UNIT} was off before"
_WAS_ON = f"{UNIT} was on before"


def amend_compute(editor: Editor, own: PurePosixPath) -> ComputePlan | None:
    """Put the head's lines into slurm.conf, or take them out again.

    Args:
        editor: edits slurm.conf, which has the Include of meshd's nodes.conf by now.
        own: meshd's nodes.conf, whose nodes are not the user's.

    Returns:
        What is to be done with slurmd; None for nothing.

    Raises:
        InitRefused: slurmd is missing, a name is taken, what is kept for the desktop leaves nothing, or jobs run on the
            head whose lines would change.
    """
    wanted = editor.have.compute
    block = marked.find(editor.conf, BLOCK)
    if wanted is None:
        return None
    if not wanted.on:
        return _take_back(editor, wanted, block) if block else None
    if _declared_otherwise(editor, own):
        return None
    _refuse(editor, wanted)
    lines = _lines(editor.have, wanted)
    changed = block is None or block.lines != tuple(lines)
    if block is not None and changed:
        _refuse_with_jobs(editor.have.head, wanted, "change")
    if changed:
        note = f"written by `meshctl init` from [head] in meshd.toml; {_WAS_ON if wanted.enabled else _WAS_OFF}"
        at = editor.first_declaring()
        editor.conf = marked.with_block(editor.conf, BLOCK, lines, at=at, note=note)
        editor.reasons.append(
            f"NodeName={editor.have.head}: jobs run on this host too, in partition {wanted.partition}"
        )
    if block is None and editor.have.pools:
        editor.warn(
            Warn.HEAD_TRUSTS_NODES,
            "root on any rented machine can be root on this host from now on, since every node has the munge key: "
            "docs/workstation.md, Whom it trusts",
        )
    editor.add_item(EXCLUDED, editor.have.head, "power saving never touches this host")
    _warn_unconstrained(editor)
    _warn_defaults(editor, wanted)
    return ComputePlan(enable=not wanted.enabled, restart=changed or not wanted.active)


def gres_lines(have: InitInput) -> tuple[str, ...]:
    """The head's lines for gres.conf."""
    if have.compute is None or not have.compute.on:
        return ()
    return tuple(
        f"NodeName={have.head} Name=gpu{f' Type={kind}' if kind else ''} File={files}"
        for kind, files, _ in _by_kind(_used(have.compute))
    )


def amend_gres(have: InitInput, conf: Conf, declared: bool) -> Conf:
    """gres.conf with the head's GPUs, or without them.

    Args:
        have: the present state.
        conf: the file.
        declared: slurm.conf has the head's block.
    """
    lines = gres_lines(have) if declared else ()
    if have.compute is None:
        return conf
    if not lines:
        return marked.without(conf, BLOCK)
    block = marked.find(conf, BLOCK)
    if block is not None and block.lines == lines:
        return conf
    return marked.with_block(conf, BLOCK, lines, at=len(conf.lines), note="written by `meshctl init`")


def job_env_change(have: InitInput, declared: bool) -> list[FileChange]:
    """The variables of every job on the head, as other nodes have them from their agents."""
    if have.compute is None or not declared or not have.task_prolog or have.compute.job_env == have.head_job_env:
        return []
    return [FileChange(JOB_ENV, have.head_job_env, have.compute.job_env, ("the variables of jobs on this host",))]


def taken_back(slurm_conf: str, gres_conf: str | None, head: str) -> tuple[str, str | None, bool]:
    """Both texts without the head's lines, and whether slurmd was on before.

    Args:
        slurm_conf: the text.
        gres_conf: the text; None when it is missing.
        head: the head's short host name.
    """
    conf = parse(slurm_conf)
    block = marked.find(conf, BLOCK)
    if block is None:
        return slurm_conf, gres_conf, True
    conf = without_item(marked.without(conf, BLOCK), EXCLUDED, head)
    gres = None if gres_conf is None else marked.without(parse(gres_conf), BLOCK).render()
    return conf.render(), gres, _WAS_ON in block.note


def without_item(conf: Conf, key: str, item: str) -> Conf:
    """Without an item of a comma list; without the line when it was the last one."""
    items = [one for one in conf.list_of(key) if one != item]
    if len(items) == len(conf.list_of(key)):
        return conf
    if items:
        return conf.with_value(key, ",".join(items))
    at = max(i for i, line in enumerate(conf.lines) if not line.is_record and line.value(key) is not None)
    return conf.without(at) if len(conf.lines[at].pairs) == 1 else conf.with_value(key, "")


def _take_back(editor: Editor, wanted: HeadCompute, block: marked.Block) -> ComputePlan:
    _refuse_with_jobs(editor.have.head, wanted, "go")
    head = editor.have.head
    editor.conf = without_item(marked.without(editor.conf, BLOCK), EXCLUDED, head)
    editor.reasons.append(f"NodeName={head} goes: jobs no longer run on this host")
    return ComputePlan(stop=True, disable=_WAS_OFF in block.note)


def _declared_otherwise(editor: Editor, own: PurePosixPath) -> bool:
    """Whether the user's own lines have the head: then they stay."""
    block, head = marked.find(editor.conf, BLOCK), editor.have.head
    conf = marked.without(editor.conf, BLOCK)
    kept, editor.conf = editor.conf, conf
    placed = next((r for r in editor.tree.records("NodeName") if head in (r.name, r.fields.get("nodehostname"))), None)
    others = [name for name, host in own_nodes(editor.tree, own) if head in (name, host)]
    editor.conf = kept
    if not others:
        return False
    if block is not None:
        raise InitRefused(
            Refusal.NODE_NAME_TAKEN, f"slurm.conf has the node {head} twice: in meshd's block, and elsewhere",
            "remove one of them: with the block, `meshctl init` keeps the line up to date",
        )  # fmt: skip
    where = placed.at.where if placed else "slurm.conf"
    editor.warn(
        Warn.HEAD_NODE_EXISTS,
        f"{where}: jobs run on this host already, by a line of your own, which stays as it is: nodes reach it only if "
        f"the line has NodeAddr={editor.have.head_address}. To have `meshctl init` write it, remove the line and its "
        "name from your partitions",
    )
    return True


def _refuse(editor: Editor, wanted: HeadCompute) -> None:
    have, shape = editor.have, wanted.shape
    if shape is None:
        raise InitRefused(
            Refusal.PACKAGES_MISSING, f"this host has no {PACKAGE}, which runs its jobs",
            f"apt-get install {PACKAGE}, then `meshctl init` again",
        )  # fmt: skip
    pool = next((pool.name for pool in have.pools if slot_index(pool.name, have.head) is not None), "")
    if pool:
        raise InitRefused(
            Refusal.NODE_NAME_TAKEN, f"this host's name {have.head} is that of a slot of pool {pool}",
            f"give [pools.{pool}] another name in /etc/meshd/meshd.toml",
        )  # fmt: skip
    taken = next((r for r in editor.tree.records("PartitionName") if r.name == wanted.partition), None)
    block = marked.find(editor.conf, BLOCK)
    ours = (
        taken is not None
        and block is not None
        and taken.at.file == editor.path
        and taken.at.line in (editor.conf.lines[block.first : block.last])
    )
    if (taken is not None and not ours) or any((p.partition or p.name) == wanted.partition for p in have.pools):
        where = taken.at.where if taken is not None else "a pool"
        raise InitRefused(
            Refusal.PARTITION_NAME_TAKEN, f"[head] would declare the partition {wanted.partition}, which {where} has",
            'set partition = "NAME" in [head] of /etc/meshd/meshd.toml, with a name that is free',
        )  # fmt: skip
    fault = shape_fault(shape) or gpus_fault(_used(wanted)) or _gpu_fault(wanted) or _kept_fault(wanted, shape)
    if fault:
        raise InitRefused(
            Refusal.HEAD_HARDWARE, f"this host cannot be a node so: {fault}",
            "correct [head] in /etc/meshd/meshd.toml (gpus, core_spec_count, mem_spec_limit_mib), or repair the driver",
        )  # fmt: skip


def _refuse_with_jobs(head: str, wanted: HeadCompute, verb: str) -> None:
    if wanted.jobs is None:
        raise InitRefused(
            Refusal.HEAD_BUSY, f"slurmctld does not answer, so jobs may run on this host, whose lines would {verb}",
            "`systemctl start slurmctld`, then `meshctl init` again",
        )  # fmt: skip
    if wanted.jobs:
        raise InitRefused(
            Refusal.HEAD_BUSY,
            f"jobs {', '.join(wanted.jobs[:5])} run on this host, and could end if its lines {verb} now",
            f'`scontrol update nodename={head} state=drain reason=init`; when they have ended, '
            "`meshctl init` again",
        )  # fmt: skip


def _gpu_fault(wanted: HeadCompute) -> str:
    if wanted.gpus is None and wanted.gpu_fault:
        return f"nvidia-smi says: {wanted.gpu_fault}"
    lacks = sorted(set(wanted.gpus or ()) - {gpu.index for gpu in wanted.found})
    known = ", ".join(str(gpu.index) for gpu in wanted.found) or "none"
    return f"head.gpus names {lacks[0]}, and nvidia-smi shows {known}" if lacks else ""


def _kept_fault(wanted: HeadCompute, shape: NodeShape) -> str:
    cores, memory = cores_of(shape), memory_promised_mib(shape.memory_mib, wanted.memory_fraction)
    if core_spec_count(wanted, shape) >= cores:
        return f"head.core_spec_count is {wanted.core_spec_count}, and it has {cores} cores: no core is left for jobs"
    if memory - mem_spec_limit_mib(wanted, shape) < MEMORY_LEAST_MIB:
        return f"of its {memory} MiB less than {MEMORY_LEAST_MIB} are left for jobs"
    return ""


def cores_of(shape: NodeShape) -> int:
    """All cores."""
    return shape.boards * shape.sockets_per_board * shape.cores_per_socket


def core_spec_count(wanted: HeadCompute, shape: NodeShape) -> int:
    """The cores that no job gets."""
    if wanted.core_spec_count is not None:
        return wanted.core_spec_count
    cores = cores_of(shape)
    return 2 if cores >= MANY_CORES else min(1, cores - 1)


def mem_spec_limit_mib(wanted: HeadCompute, shape: NodeShape) -> int:
    """The memory that no job gets."""
    if wanted.mem_spec_limit_mib is not None:
        return wanted.mem_spec_limit_mib
    return max(shape.memory_mib // 8, min(MEMORY_KEPT_LEAST_MIB, shape.memory_mib // 2))


def _used(wanted: HeadCompute) -> tuple[GpuFact, ...]:
    """The GPUs that jobs get."""
    return tuple(gpu for gpu in wanted.found if wanted.gpus is None or gpu.index in wanted.gpus)


def _by_kind(gpus: Sequence[GpuFact]) -> list[tuple[str, str, int]]:
    """Gres type, device files and number, for each model."""

    def kind(gpu: GpuFact) -> str:
        word = as_word(normalise(gpu.name))
        return word if WORD.fullmatch(word) else ""

    ordered = sorted(gpus, key=lambda gpu: (kind(gpu), gpu.index))
    grouped = [(name, [gpu.device for gpu in of]) for name, of in groupby(ordered, kind)]
    return [(name, str(NodeSet.fromlist(files)), len(files)) for name, files in grouped]


def _lines(have: InitInput, wanted: HeadCompute) -> list[str]:
    shape = wanted.shape
    assert shape is not None
    kinds = _by_kind(_used(wanted))
    gres = ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, _, count in kinds)
    features = ",".join([FEATURE, *(kind for kind, _, _ in kinds if kind)])
    plain = " ".join(f"{key}={value}" for key, value in {**PARTITION_PLAIN, "PriorityTier": PRIORITY_TIER}.items())
    return [
        f"NodeName={have.head} NodeAddr={have.head_address} CPUs={cpus_of(shape)} Boards={shape.boards} "
        f"SocketsPerBoard={shape.sockets_per_board} CoresPerSocket={shape.cores_per_socket} "
        f"ThreadsPerCore={shape.threads_per_core} "
        f"RealMemory={memory_promised_mib(shape.memory_mib, wanted.memory_fraction)} "
        f"CoreSpecCount={core_spec_count(wanted, shape)} MemSpecLimit={mem_spec_limit_mib(wanted, shape)} "
        f"{f'Gres={gres} ' if gres else ''}Feature={features} TmpDisk=0 Weight=1 State=UNKNOWN",
        f"PartitionName={wanted.partition} Nodes={have.head} Default={'YES' if wanted.default else 'NO'} "
        f"MaxTime=INFINITE State=UP {plain}",
    ]


def _warn_unconstrained(editor: Editor) -> None:
    """Say what keeps jobs from taking what is kept for the desktop only by their good will."""
    tree, cgroup = editor.tree, parse(editor.have.cgroup_conf or "")
    lacks = [key for key in ("ConstrainCores", "ConstrainRAMSpace", "ConstrainDevices")
             if (cgroup.get(key) or "no").lower() not in ("yes", "true")]  # fmt: skip
    new = editor.have.cgroup_conf is None and editor.have.slurm_conf is None  # init writes a whole one
    plugin = "task/cgroup" in (item.lower() for item in tree.list_of("TaskPlugin"))
    memory = any("memory" in item.lower() for item in tree.list_of("SelectTypeParameters"))
    faults = [*([] if plugin else ["TaskPlugin has no task/cgroup"]),
              *([] if memory else ["SelectTypeParameters does not count memory (CR_Core_Memory)"]),
              *([f"{editor.have.conf_dir / 'cgroup.conf'} lacks {', '.join(f'{key}=yes' for key in lacks)}"]
                if lacks and not new else [])]  # fmt: skip
    if faults:
        editor.warn(
            Warn.HEAD_UNCONSTRAINED,
            f"a job on this host may take the cores, memory or GPUs that it did not ask for: {'; '.join(faults)}",
        )


def _warn_defaults(editor: Editor, wanted: HeadCompute) -> None:
    others = [r for r in editor.tree.records("PartitionName")
              if r.name != wanted.partition and r.fields.get("default", "").upper() == "YES"]  # fmt: skip
    if wanted.default and others:
        editor.warn(
            Warn.TWO_DEFAULTS,
            f"[head] is default, and so is PartitionName={others[-1].name} ({others[-1].at.where}): Slurm takes the "
            "last one it reads; write Default=NO there, or drop default = true from [head]",
        )


def declared(conf: Conf) -> bool:
    """Whether slurm.conf has the head's block."""
    return marked.find(conf, BLOCK) is not None
