from __future__ import annotations

import pytest

from meshd.errors import SlurmError
from meshd.plan.fitness import by_person
from meshd.slurm import show
from meshd.slurm.listing import SEPARATOR

NODE_24_11 = (
    "NodeName=h100-1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=2.02 "
    "AvailableFeatures=aws,h100 ActiveFeatures=aws,h100 Gres=gpu:h100:8 NodeAddr=100.64.77.2 NodeHostName=h100-1 "
    "Version=24.11.5 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0 State=FAKE  RealMemory=1000 AllocMem=0 FreeMem=20130 "
    "Sockets=2 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions=h100,all  BootTime=2026-11-27T22:50:40 SlurmdStartTime=2026-11-27T23:21:17 "
    "LastBusyTime=2026-11-27T23:21:17 ResumeAfterTime=None CfgTRES=cpu=2,mem=1000M,billing=2 AllocTRES= CurrentWatts=0 "
    'AveWatts=0  Reason=meshd: it\'s = "q" State=UP [root@2026-11-27T23:21:20]\n'
)
NODE_22_05 = (
    "NodeName=h100-2 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=N/A AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:h100:8 NodeAddr=239.192.0.254 NodeHostName=h100-2  RealMemory=1000 AllocMem=0 "
    "FreeMem=N/A Sockets=2 Boards=1 State=DOWN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions=h100  BootTime=None SlurmdStartTime=None LastBusyTime=Unknown CfgTRES=cpu=2,mem=1000M,billing=2 "
    "AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s "
    "Reason=meshd: free slot\n"
)


def test_a_node_of_24_11_with_a_reason_that_looks_like_fields():
    node = show.parse_nodes(NODE_24_11)["h100-1"]
    assert node.states == {"IDLE", "DRAIN"}
    assert node.reason == 'meshd: it\'s = "q" State=UP'
    assert (node.node_addr, node.version, node.gres) == ("100.64.77.2", "24.11.5", "gpu:h100:8")
    assert node.features == ("aws", "h100")
    assert node.partitions == ("h100", "all")


def test_a_node_of_22_05_that_never_registered():
    node = show.parse_nodes(NODE_22_05)["h100-2"]
    assert (node.states, node.reason, node.features, node.version) == ({"DOWN"}, "meshd: free slot", (), "")


def test_a_reason_without_a_stamp_ends_before_the_next_field():
    line = NODE_22_05.rstrip() + " Comment=call me\n"
    assert show.parse_nodes(line)["h100-2"].reason == "meshd: free slot"


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("IDLE*", {"IDLE", "NOT_RESPONDING"}),
        ("DOWN*+CLOUD", {"DOWN", "NOT_RESPONDING", "CLOUD"}),
        ("DOWN+CLOUD+NOT_RESPONDING", {"DOWN", "NOT_RESPONDING", "CLOUD"}),
        ("idle~", {"IDLE", "POWERED_DOWN"}),
        ("DRAINED", {"IDLE", "DRAIN"}),
        ("DRAINING@", {"ALLOCATED", "DRAIN", "REBOOT_REQUESTED"}),
        ("IDLE+DRAIN+INVALID_REG", {"IDLE", "DRAIN", "INVALID_REG"}),
        ("MIXED-", {"MIXED", "PLANNED"}),
        ("SOMETHING_NEW", {"SOMETHING_NEW"}),
    ],
)
def test_states_are_spelled_out(text, states):
    assert show.parse_states(text) == states


@pytest.mark.parametrize(
    "text",
    ["", "\n",
     "slurm_load_node error: Unable to contact slurm controller", "Node h100-9 not found", "NodeName=x Arch=y",
     NODE_22_05 + "slurm_load_node error: timed out"],
)  # fmt: skip
def test_what_is_no_listing_of_nodes_is_never_an_empty_one(text):
    with pytest.raises(SlurmError):
        show.parse_nodes(text)


def test_a_cluster_without_nodes_says_so():
    assert show.parse_nodes("No nodes in the system\n") == {}


def job_line(*fields: str) -> str:
    return "".join(f"{field}{SEPARATOR}" for field in fields) + "\n"


WAITING = job_line(
    "2", "ann", "h100", "PENDING", "", "Nodes required for job are DOWN, DRAINED or reserved", "2", "N/A",
    "gres:gpu:h100:8", "a100|h100", "0:00", "h100-[3-4]", "physics", "1", "0", "meshd: no h100",
)  # fmt: skip
RUNNING = job_line(
    "3_1", "bob", "h100", "RUNNING", "h100-[1-2],cpu-1", "None", "3", "gres/gpu:4", "N/A", "(null)", "1:05", "",
    "(null)", "0", "1", "",
)  # fmt: skip


def test_jobs_that_wait_and_run():
    waiting, running = show.parse_jobs(WAITING + RUNNING)
    assert (waiting.id, waiting.gpus, waiting.nodes, waiting.features) == ("2", 16, (), "a100|h100")
    assert waiting.state_reason.startswith("Nodes required")
    assert (waiting.account, waiting.batch, waiting.requeue) == ("physics", True, False)
    assert (waiting.admin_comment, waiting.configuring) == ("meshd: no h100", False)
    assert (running.account, running.batch, running.requeue, running.admin_comment) == ("", False, True, "")
    assert (waiting.required_nodes, running.required_nodes) == (("h100-3", "h100-4"), ())
    assert set(running.nodes) == {"h100-1", "h100-2", "cpu-1"}
    assert (running.gpus, running.state_reason) == (4, "")


def test_the_former_nodes_of_a_job_that_waits_again_are_not_its_nodes():
    (job,) = show.parse_jobs(RUNNING.replace("RUNNING", "PENDING"))
    assert job.nodes == ()


RESERVATION = (
    "ReservationName={} StartTime=2026-11-28T16:10:57 EndTime=2026-11-28T17:10:57 Duration=01:00:00 Nodes={} NodeCnt=1 "
    "CoreCnt=1 Features=(null) PartitionName={} Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=1 Users=root\n"
)


def test_reservations():
    text = RESERVATION.format("r1", "h100-[3-4]", "(null)") + RESERVATION.format("r2", "(null)", "cpu")
    first, second = show.parse_reservations(text + "\n")
    assert (first.name, first.nodes, first.partition) == ("r1", ("h100-3", "h100-4"), "")
    assert (second.name, second.nodes, second.partition) == ("r2", (), "cpu")
    assert show.parse_reservations("No reservations in the system\n") == ()
    for text in ("", "slurm_load_reservations error: Unable to contact slurm controller"):
        with pytest.raises(SlurmError):
            show.parse_reservations(text)


def test_the_youngest_running_job():
    assert show.youngest_job_s(WAITING) is None
    assert show.youngest_job_s(WAITING + RUNNING + RUNNING.replace("1:05", "1-02:00:00")) == 65


def test_no_jobs_is_an_empty_text_and_an_error_is_not():
    assert show.parse_jobs("") == ()
    with pytest.raises(SlurmError):
        show.parse_jobs("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("gres:gpu:h100:8", 8), ("gres/gpu:2", 2), ("gres/gpu=4", 4), ("N/A", 0), ("gres:gpu", 1), ("cpu=1,mem=4G", 0),
     ("gres/gpu=8,gres/gpu:h100=8", 8), ("gres:gpu:a:1,gres:gpu:b:2", 3), ("gres:gpumem:4", 0)],
)  # fmt: skip
def test_gpus_of_a_request(text, gpus):
    assert show.gpus_of(text) == gpus


def test_hostlists_keep_their_zeros():
    assert show.hostlist("b[04-06]") == ("b04", "b05", "b06")
    with pytest.raises(SlurmError):
        show.hostlist("b[04-")


def test_ping_and_version():
    assert show.ping_says_up("Slurmctld(primary) at head is UP\n")
    assert not show.ping_says_up("Slurmctld(primary) at head is DOWN\n")
    with pytest.raises(SlurmError):
        show.ping_says_up("scontrol: fatal: Unable to process configuration file")
    assert show.slurmctld_version_text("A = 1\nSLURM_VERSION           = 24.11.5\n") == "24.11.5"


def test_complaints_are_the_last_errors_and_always_the_fatal_one():
    log = "[t] error: one\n[t] fatal: dead\n[t] debug: x\n[t] error: two\n[t] error: three\n[t] error: four\n"
    assert show.last_errors(log) == "error: two; error: three; error: four; fatal: dead"


def test_what_a_node_has_slurm_say_is_one_line_without_escapes() -> None:
    words = "a\x1b[31m\x9b31m\ttext" + "x" * 5000
    line = f"NodeName=h100-1 State=DOWN NodeAddr=100.64.0.2 Reason={words} [root@2026-11-27T23:21:20]\n"
    reason = show.parse_nodes(line)["h100-1"].reason
    assert reason.isprintable()
    assert len(reason) == show.REASON_MAX_CHARS


def test_slurms_own_words_after_a_blanked_reason_are_slurms() -> None:
    """So 24.11 shows a node that died some time after a resume which took the reason away."""
    head = "NodeName=h100-1 State=DOWN NodeAddr=100.64.0.2 Reason="
    node = show.parse_nodes(f"{head}  : Not responding [slurm@2026-11-29T17:01:57] InstanceId=i-1\n")["h100-1"]
    assert (node.reason, node.reason_by, by_person(node, "slurm")) == ("Not responding", "slurm", False)
    assert show.parse_nodes(f"{head}  [slurm@2026-11-29T17:01:57]\n")["h100-1"].reason == ""


def test_settings_that_a_kernel_may_not_allow():
    text = (
        "Configuration data as of 2026-11-28T23:00:00\nJobContainerType        = (null)\n"
        "ProctrackType           = proctrack/cgroup\nTaskPlugin              = task/affinity,task/cgroup\n"
        "TreeWidth               = 65533\n\nCgroup Support Configuration:\n"
        "ConstrainDevices        = yes\nCgroupPlugin            = (null)\n"
    )
    assert show.node_settings(text) == {
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": "task/affinity,task/cgroup",
        "ConstrainDevices": "yes",
    }
