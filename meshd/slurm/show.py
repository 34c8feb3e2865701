"""PURE: parses the output of scontrol and squeue, and slurmctld's log.

Unknown fields are ignored. Text that is no listing raises SlurmError: an error message must not read as an empty list.
Measured on 22.05.8 and 24.11.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from ClusterShell.NodeSet import NodeSet, NodeSetException

from meshd.errors import SlurmError
from meshd.model.observed import SlurmJob, SlurmNode, SlurmReservation
from meshd.plaintext import plain
from meshd.slurm.listing import SEPARATOR

JOB_FIELDS = (
    "JobArrayID", "UserName", "Partition", "State", "NodeList", "Reason", "NumNodes", "tres-per-job", "tres-per-node",
    "Feature", "TimeUsed", "ReqNodes", "Account", "BatchFlag", "Requeue", "admin_comment",
)  # fmt: skip

STATE_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
STATE_WORDS = {
    "DRAINED": ("IDLE", "DRAIN"),
    "DRAINING": ("ALLOCATED", "DRAIN"),
    "INVAL": ("INVALID_REG",),
    "ALLOC": ("ALLOCATED",),
    "COMP": ("COMPLETING",),
    "MIX": ("MIXED",),
    "NO_RESPOND": ("NOT_RESPONDING",),
}

COMPLAINTS_MAX = 3
_NO_NODES = "No nodes in the system"
_NO_RESERVATIONS = "No reservations in the system"
_ONE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_REASON_STAMP = re.compile(r"\s*\[([^\[\]\s]+)@([^\[\]\s@]+)\]")
REASON_MAX_CHARS = 1000
"""A node's root can make Slurm show any text."""
_AFTER_REASON = re.compile(r"\s+(?:Comment|Extra|ReservationName)=")
_GPU = re.compile(r"(?:^|[,/:])gpu(?:[:=]([A-Za-z_][\w.-]*))?(?:[:=](\d+))?(?=$|[,(])")


@lru_cache(maxsize=1024)
def parse_states(text: str) -> frozenset[str]:
    """The states in a State field. Suffixes (`*`, `~`) and short forms become full names."""
    states: set[str] = set()
    for word in text.upper().split("+"):
        bare = word.rstrip("".join(STATE_MARKS))
        states.update(STATE_MARKS[mark] for mark in word[len(bare) :])
        states.update(STATE_WORDS.get(bare, (bare,) if bare else ()))
    return frozenset(states)


def parse_nodes(text: str) -> dict[str, SlurmNode]:
    """Parse `scontrol show nodes -o`: the nodes by name.

    Raises:
        SlurmError: a line is no node, or the text is empty.
    """
    if text.strip() == _NO_NODES:
        return {}
    nodes = [_node(line) for line in text.split("\n") if line.strip()]
    if not nodes:
        raise SlurmError("scontrol show nodes printed nothing")
    return {node.name: node for node in nodes}


@lru_cache(maxsize=16384)
def _node(line: str) -> SlurmNode:
    # Cached: most lines are the same as 5 s before, since slurmctld reads load and memory once in SlurmdTimeout / 3.
    # The kernel's version is free text in the middle; the reason is free text at the end.
    head, _, tail = line.partition(" Reason=")
    before, _, after = head.partition(" OS=")
    head = f" {before} {after[max(after.find(' RealMemory='), 0) :]} "
    name, state = _word(head, "NodeName"), _word(head, "State")
    if not line.startswith("NodeName=") or not name or not state:
        raise SlurmError(f"scontrol show nodes: this is not a node: {line.strip()[:200]!r}")
    reason, by, at = _reason(tail)
    return SlurmNode(
        name=name,
        node_addr=_word(head, "NodeAddr"),
        states=parse_states(state),
        reason=plain(reason, REASON_MAX_CHARS),
        reason_by=by,
        reason_at=at,
        partitions=items(_word(head, "Partitions")),
        features=items(_word(head, "ActiveFeatures") or _word(head, "AvailableFeatures")),
        gres=_word(head, "Gres"),
        version=_word(head, "Version"),
    )


def _word(head: str, key: str) -> str:
    """The value of a field that is one word; "" when it is missing or `(null)`, `N/A` and the like."""
    at = head.find(f" {key}=")
    if at < 0:
        return ""
    start = at + len(key) + 2
    return filled(head[start : head.find(" ", start)])


def _reason(tail: str) -> tuple[str, str, datetime | None]:
    """The reason, its author and its time; "" and None where scontrol does not show them.

    Slurm puts its own words behind a reason that is there, also behind one that was blanked: "  : Not responding".
    """
    stamps = list(_REASON_STAMP.finditer(tail))
    if stamps:
        return tail[: stamps[-1].start()].strip().removeprefix(": "), stamps[-1][1], _local_time(stamps[-1][2])
    return _AFTER_REASON.split(tail, maxsplit=1)[0].strip().removeprefix(": "), "", None


def _local_time(text: str) -> datetime | None:
    """A time from scontrol, in the head's time zone, as UTC; None for text like `Unknown`."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None


def parse_jobs(text: str) -> tuple[SlurmJob, ...]:
    """Parse squeue's JOB_FIELDS, as `listing.lines_of` gives them. Empty text means no jobs.

    Raises:
        SlurmError: a line is no job.
    """
    return tuple(_job(line) for line in text.split("\n") if line.strip())


def _job(line: str) -> SlurmJob:
    parts = line.split(SEPARATOR)
    if len(parts) != len(JOB_FIELDS) + 1 or not parts[0].strip():
        raise SlurmError(f"squeue: this is not a job: {line.strip()[:200]!r}")
    field = dict(zip(JOB_FIELDS, (part.strip() for part in parts), strict=False))
    count = int(field["NumNodes"]) if field["NumNodes"].isdigit() else 1
    return SlurmJob(
        id=field["JobArrayID"],
        user=field["UserName"],
        partition=field["Partition"],
        state=field["State"].upper(),
        # 22.05 shows the former nodes of a job that was put back into the queue.
        nodes=hostlist(filled(field["NodeList"])) if field["State"].upper() != "PENDING" else (),
        state_reason=plain(filled(field["Reason"]), REASON_MAX_CHARS),
        gpus=gpus_of(field["tres-per-job"]) or gpus_of(field["tres-per-node"]) * count,
        features=filled(field["Feature"]),
        required_nodes=hostlist(filled(field["ReqNodes"])) if field["ReqNodes"] else (),
        account=plain(filled(field["Account"]), REASON_MAX_CHARS),
        batch=field["BatchFlag"] == "1",
        requeue=field["Requeue"] == "1",
        admin_comment=plain(filled(field["admin_comment"]), REASON_MAX_CHARS),
        node_count=count if field["NumNodes"].isdigit() else 0,
        run_s=_run_s(field),
    )


def _run_s(field: Mapping[str, str]) -> float | None:
    try:
        return _seconds(field["TimeUsed"]) if field["State"].upper() == "RUNNING" else None
    except SlurmError:
        return None


def parse_reservations(text: str) -> tuple[SlurmReservation, ...]:
    """Parse `scontrol show reservation -o`.

    Raises:
        SlurmError: a line is no reservation, or the text is empty.
    """
    lines = [f" {line.strip()} " for line in text.split("\n") if line.strip()]
    if [line.strip() for line in lines] == [_NO_RESERVATIONS]:
        return ()
    if not lines or not all(line.startswith(" ReservationName=") for line in lines):
        raise SlurmError(f"scontrol show reservation: this is not a reservation: {text.strip()[:200]!r}")
    return tuple(
        SlurmReservation(_word(line, "ReservationName"), hostlist(_word(line, "Nodes")), _word(line, "PartitionName"))
        for line in lines
    )


def youngest_job_s(text: str) -> int | None:
    """Seconds since the latest start of a running job, from squeue's JOB_FIELDS; None when no job runs.

    Raises:
        SlurmError: a line is no job, or a time cannot be read.
    """
    ages = []
    for line in text.split("\n"):
        if line.strip() and _job(line).state not in {"PENDING", "COMPLETED", "CANCELLED", "FAILED"}:
            ages.append(_seconds(line.split(SEPARATOR)[JOB_FIELDS.index("TimeUsed")].strip()))
    return min(ages, default=None)


def _seconds(text: str) -> int:
    """Parse `[days-][hours:]minutes:seconds`. INVALID, which squeue shows for a start in the future, is 0."""
    if text == "INVALID":
        return 0
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if not match:
        raise SlurmError(f"squeue: {text[:50]!r} is not a time")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def gpus_of(tres: str) -> int:
    """GPUs in a TRES or Gres list ("gres:gpu:h100:8", "gres/gpu=2,gres/gpu:h100=2"); 0 when it names none.

    Typed and untyped counts in one list mean the same GPUs: the larger sum counts.
    """
    typed = untyped = 0
    for kind, number in _GPU.findall(tres):
        count = int(number or 1)
        typed, untyped = (typed + count, untyped) if kind else (typed, untyped + count)
    return max(typed, untyped)


@lru_cache(maxsize=16384)
def hostlist(text: str) -> tuple[str, ...]:
    """Expand a Slurm host list, in order.

    Raises:
        SlurmError: the text is no host list.
    """
    if _ONE_NAME.fullmatch(text):
        return (text,)
    try:
        return tuple(NodeSet(text))
    except NodeSetException as error:
        raise SlurmError(f"not a host list: {text[:200]!r} ({error})") from error


def slurmctld_version_text(text: str) -> str:
    """The SLURM_VERSION in `scontrol show config`: slurmctld's own, not the client's.

    Raises:
        SlurmError: the text has none.
    """
    match = re.search(r"^SLURM_VERSION\s*=\s*(\S+)", text, re.MULTILINE)
    if not match:
        raise SlurmError(f"scontrol show config has no SLURM_VERSION: {text.strip()[:200]!r}")
    return match[1]


def slurm_user(text: str) -> str:
    """The SlurmUser in `scontrol show config`, e.g. "slurm"; "root", Slurm's own default, when there is none."""
    match = re.search(r"^SlurmUser\s*=\s*([^(\s]+)", text, re.MULTILINE)
    return match[1] if match else "root"


def auth_type(text: str) -> str:
    """The AuthType in `scontrol show config`, e.g. "auth/munge"; "" when there is none."""
    match = re.search(r"^AuthType\s*=\s*(\S+)", text, re.MULTILINE)
    return match[1] if match else ""


NODE_SETTINGS = (
    "ProctrackType", "TaskPlugin", "JobAcctGatherType", "JobAcctGatherParams", "JobContainerType", "CgroupPlugin",
    "ConstrainCores", "ConstrainRAMSpace", "ConstrainSwapSpace", "ConstrainDevices",
)  # fmt: skip
"""Settings of slurmd that the kernel of a machine may not allow."""


def node_settings(text: str) -> dict[str, str]:
    """The NODE_SETTINGS that `scontrol show config` prints, without those that are not set."""
    found = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))
    return {key: found[key] for key in NODE_SETTINGS if found.get(key, "(null)") not in ("(null)", "")}


def gpus_closed(text: str) -> bool:
    """Whether slurmd keeps a job from the GPUs of other jobs, by `scontrol show config`.

    NVIDIA's device files are open to every user (mode 0666). Only slurmd closes them, by cgroup: `ConstrainDevices=yes`
    in cgroup.conf, and task/cgroup among the TaskPlugins (Slurm's cgroup.conf(5) and gres.conf(5)). CgroupPlugin
    "disabled" turns everything off.
    """
    values = {key: value.lower() for key, value in re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE)}
    plugins = {item.strip() for item in values.get("TaskPlugin", "").split(",")}
    cgroups = values.get("CgroupPlugin", "") not in {"disabled", "cgroup/disabled"}
    return values.get("ConstrainDevices", "") in {"yes", "true", "1"} and "task/cgroup" in plugins and cgroups


def task_prolog(text: str) -> str:
    """The TaskProlog in `scontrol show config`; "" when there is none."""
    found = re.search(r"^TaskProlog(?:\[0\])?\s*=\s*(\S.*?)\s*$", text, re.MULTILINE)
    return found[1] if found and found[1] != "(null)" else ""


def accounting_host(text: str) -> str:
    """The host of slurmdbd, by `scontrol show config`; "" where Slurm keeps no records."""
    values = dict(re.findall(r"^(AccountingStorage\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))
    kind = values.get("AccountingStorageType", "").lower().removeprefix("accounting_storage/")
    return values.get("AccountingStorageHost", "") if kind == "slurmdbd" else ""


def cluster_name(text: str) -> str:
    """ClusterName, by `scontrol show config`."""
    found = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def dbd_queue(text: str) -> int:
    """How many messages wait in slurmctld for slurmdbd, by `sdiag`; 0 where it does not say."""
    found = re.search(r"^DBD Agent queue size:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def last_errors(log: str) -> str:
    """The last errors in slurmctld's log, for people: Slurm's commands often say only "Unspecified error"."""
    lines = re.findall(r"^(?:\[[^\]\n]*\] )?((?:fatal|error): .*)$", log, re.MULTILINE)
    fatal = [line for line in lines if line.startswith("fatal")]
    return "; ".join(dict.fromkeys([*lines[-COMPLAINTS_MAX:], *fatal[-1:]]))


def ping_says_up(text: str) -> bool:
    """Whether `scontrol ping` shows a slurmctld that is UP; False for DOWN.

    Raises:
        SlurmError: the text shows neither.
    """
    if re.search(r"^Slurmctld\(.*\bis UP\b", text, re.MULTILINE):
        return True
    if re.search(r"^Slurmctld\(.*\bis DOWN\b", text, re.MULTILINE):
        return False
    raise SlurmError(f"scontrol ping: {text.strip()[:200]!r}")


def filled(text: str) -> str:
    """The text; "" for `(null)`, `N/A`, `None` and `n/a`."""
    return "" if text in {"(null)", "N/A", "None", "n/a"} else text


def items(text: str) -> tuple[str, ...]:
    """The items of a list with commas."""
    return tuple(item for item in filled(text).split(",") if item)
