# ruff: noqa: E501 - texts as they stand in files
"""slurm.conf texts in the forms that sites have them, each with what `meshctl init` makes of it.

All are invented. The unit tests plan with them; the integration tests run each through the slurmctld of two releases,
as it is and after init.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshd.slurm.init.codes import Refusal, Warn

HEAD = "head"
ADDRESS = "100.64.77.1"


@dataclass(frozen=True)
class Case:
    """One head.

    Attributes:
        files: texts below /etc/slurm; slurm.conf is one of them.
        refused: why init writes nothing; None: it goes through.
        warns: the codes of all its warnings.
        same: nothing has to be changed in slurm.conf.
        has: lines that slurm.conf has afterwards, as they stand.
        elsewhere: texts of files outside /etc/slurm.
        unreachable: Slurm's commands look for slurmctld at another host's address.
    """

    files: Mapping[str, str]
    refused: Refusal | None = None
    warns: frozenset[Warn] = frozenset()
    same: bool = False
    has: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    unreachable: bool = False


PATHS = """\
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
"""
TOP = f"ClusterName=lab\nSlurmctldHost={HEAD}({ADDRESS})\nSlurmUser=slurm\n"
BASE = TOP + PATHS
NODES = "NodeName=rack[1-4] NodeAddr=10.9.0.[1-4] CPUs=8 RealMemory=16000 State=UNKNOWN\n"
PART = "PartitionName=batch Nodes=rack[1-4] Default=YES MaxTime=2-00:00:00 State=UP\n"
CGROUPS = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
JobAcctGatherType=jobacct_gather/cgroup
PrologFlags=Contain
"""
"""What suits machines. Pods go without: their agents see to that, and init changes nothing."""

READY = """\
SlurmctldParameters=enable_configless
ReturnToService=2
TreeWidth=65533
SlurmdTimeout=300
MessageTimeout=30
UnkillableStepTimeout=300
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SrunPortRange=60001-63000
CommunicationParameters=keepalivetime=60,keepaliveinterval=30,keepaliveprobes=10
"""


def case(text: str, *warns: Warn, **more: object) -> Case:
    """A head with this slurm.conf; `files` has more of them."""
    files = {"slurm.conf": text, **more.pop("files", {})}  # type: ignore[dict-item]
    return Case(files, warns=frozenset(warns), **more)  # type: ignore[arg-type]


def refused(text: str, code: Refusal, **files: str) -> Case:
    """A head that init refuses."""
    return Case({"slurm.conf": text, **{name.replace("_", "."): body for name, body in files.items()}}, refused=code)


CORPUS: dict[str, Case] = {
    # the shapes of whole files
    "plain": case(BASE + NODES + PART),
    "ready but for the include": case(BASE + READY + NODES + PART, has=("Include nodes.conf",)),
    "crlf": case((BASE + NODES + PART).replace("\n", "\r\n")),
    "crlf, localhost first": case((BASE + "NodeName=localhost CPUs=1\nPartitionName=d Nodes=localhost\n").replace("\n", "\r\n")),
    "no newline at the end": case(BASE + NODES + PART.rstrip("\n")),
    "tabs and spaces": case(
        BASE + "\tTreeWidth \t=  40\t\n  ReturnToService=1   \nNodeName=rack1\tNodeAddr=10.9.0.1\t\tCPUs=8\n"
        "PartitionName=batch\tNodes=rack1\n",
        has=("\tTreeWidth \t=  65533\t",),
    ),
    "odd case": case(
        BASE.lower().replace("slurmctldhost=head", "SLURMCTLDHOST=head")
        + "TREEWIDTH=7\nreturnTOservice=0\nNODENAME=rack1 nodeADDR=10.9.0.1 cpus=8\npartitionname=batch NODES=rack1\n",
        has=("TREEWIDTH=65533", "returnTOservice=2"),
    ),
    "comments behind values": case(
        BASE + "TreeWidth=50   # fan out\nSlurmdTimeout=30# short\nMessageTimeout=60\n#NodeName=h100-1\n" + NODES + PART,
        has=("TreeWidth=65533   # fan out", "SlurmdTimeout=300# short", "MessageTimeout=60"),
    ),
    "quotes": case(
        BASE + 'TreeWidth="50"\nSlurmctldParameters="idle_on_node_suspend, power_save_interval=20"\n'
        + 'NodeName=rack1 NodeAddr=10.9.0.1 CPUs=8 Reason="to be wired" State="DOWN"\nPartitionName="batch" Nodes="rack1"\n',
    ),
    "continued lines": case(
        BASE + "SlurmctldParameters=idle_on_node_suspend,\\\npreempt_send_user_signal\n"
        "NodeName=rack1 \\\n    NodeAddr=10.9.0.1 \\\n  CPUs=8\nPartitionName=batch \\\nNodes=rack1 \\  \nDefault=YES\n",
        has=("SlurmctldParameters=idle_on_node_suspend,preempt_send_user_signal,enable_configless",),
    ),
    "a continuation before a comment, at the end": case(BASE + NODES + PART + "MaxJobCount=500 \\ # for now\n"),
    "a continuation at the very end": case(BASE + NODES + PART + "MaxJobCount=500 \\"),
    "a comment that ends with a backslash": case(BASE + "# C:\\\nTreeWidth=3\n" + NODES + PART, has=("TreeWidth=65533",)),
    "an escaped hash": case(BASE + "MailProg=/usr/bin/true\nClusterName=lab\n" + "Epilog=/opt/a\\#b\n" + NODES + PART, Warn.PROGRAM_ON_MACHINES),
    "latin-1 comments": case(BASE + "# Rechner im Geb\udce4ude 4\n" + NODES + PART),
    "a configurator's page": case(
        "# slurm.conf file generated by configurator easy.html.\n# Put this file on all nodes of your cluster.\n#\n"
        + TOP + "#\n#MailProg=/bin/mail\nMpiDefault=none\n#MpiParams=ports=#-#\nProctrackType=proctrack/linuxproc\n"
        "ReturnToService=1\nSlurmctldPidFile=/run/slurm/slurmctld.pid\n#SlurmctldPort=6817\nSlurmdPidFile=/run/slurm/slurmd.pid\n"
        "SlurmdSpoolDir=/var/spool/slurmd\nStateSaveLocation=/var/spool/slurmctld\nSwitchType=switch/none\nTaskPlugin=task/none\n"
        "#\n#\n# TIMERS\n#KillWait=30\n#MinJobAge=300\n#SlurmctldTimeout=120\n#SlurmdTimeout=300\n#\n#\n# SCHEDULING\n"
        "SchedulerType=sched/backfill\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n#\n#\n# LOGGING AND ACCOUNTING\n"
        "#JobAcctGatherFrequency=30\nSlurmctldLogFile=/var/log/slurm/slurmctld.log\n#SlurmdDebug=info\n#\n#\n# COMPUTE NODES\n"
        + NODES + "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
        Warn.ALL_NODES,
        has=("ReturnToService=2", "SelectTypeParameters=CR_Core"),
    ),
    "a big site": case(
        BASE + "".join(f"# rack {r}\nNodeName=r{r}n[001-032] NodeAddr=10.{r}.0.[1-32] CPUs=64 Sockets=2 CoresPerSocket=16 "
        "ThreadsPerCore=2 RealMemory=250000 Feature=ib,gen3 Weight=10\n" for r in range(1, 9))
        + "NodeName=big[1-2],gpu-login NodeAddr=10.20.0.[1-3] CPUs=8\n"
        + "PartitionName=DEFAULT MaxTime=1-00:00:00 DefMemPerCPU=2000 State=UP\n"
        + "".join(f"PartitionName=q{r} Nodes=r{r}n[001-032] PriorityTier={r}\n" for r in range(1, 9))
        + "PartitionName=big Nodes=big[1-2] AllowGroups=root\nPriorityType=priority/multifactor\nPriorityWeightAge=1000\n",
    ),
    # which value is in force
    "a key twice": case(BASE + "TreeWidth=9\nTreeWidth=10\n" + NODES + PART, has=("TreeWidth=9", "TreeWidth=65533")),
    "a later include overrides": case(
        BASE + "TreeWidth=65533\nReturnToService=2\n" + NODES + PART + "Include tuning.conf\n",
        files={"tuning.conf": "TreeWidth=4\nReturnToService=0\nSlurmctldParameters=preempt_send_user_signal\n"},
        has=("SlurmctldParameters=preempt_send_user_signal,enable_configless,idle_on_node_suspend",),
    ),
    "an earlier include is overridden": case(
        "Include tuning.conf\n" + BASE + "TreeWidth=65533\n" + NODES + PART, files={"tuning.conf": "TreeWidth=4\n"}
    ),
    "all is in an included file": case(
        BASE + "Include tuning.conf\n" + NODES + PART, files={"tuning.conf": READY}, has=("Include nodes.conf",)
    ),
    "nested includes": case(
        BASE + "include a.conf\n", files={"a.conf": "INCLUDE\tb.conf  # more\n" + PART, "b.conf": "TreeWidth=5\n" + NODES},
        has=("TreeWidth=65533",),
    ),
    "an include by the cluster's name": case(
        BASE + "Include %c-nodes.conf\n", files={"lab-nodes.conf": NODES + PART}
    ),
    "an absolute include": case(
        BASE + "Include /etc/slurm/site-nodes.conf\n", files={"site-nodes.conf": NODES + PART},
        has=("Include site-nodes.conf",),
    ),
    "an include from elsewhere": case(
        BASE + NODES + PART + "Include /usr/local/etc/site.conf\n", Warn.INCLUDE_NOT_SHIPPED,
        elsewhere={"/usr/local/etc/site.conf": "TreeWidth=5\n"}, has=("TreeWidth=65533",),
    ),
    "an include below the directory": case(
        BASE + "Include conf.d/nodes.conf\n", Warn.INCLUDE_NOT_SHIPPED, files={"conf.d/nodes.conf": NODES + PART}
    ),
    # the user's own nodes.conf
    "a nodes.conf of the user's": case(
        BASE + "Include nodes.conf\n" + PART, files={"nodes.conf": NODES}, has=("Include meshd-nodes.conf", "Include nodes.conf")
    ),
    "a nodes.conf that nothing includes": case(
        BASE + NODES + PART, files={"nodes.conf": "# old\nNodeName=x1 CPUs=1\n"}, has=("Include meshd-nodes.conf",)
    ),
    # nodes and partitions
    "localhost first": case(BASE + "NodeName=localhost CPUs=1\nPartitionName=d Nodes=localhost Default=YES\n"),
    "node defaults": case(
        BASE + "NodeName=DEFAULT TmpDisk=900000 Weight=7 CoresPerSocket=4 Sockets=2 State=UNKNOWN\n" + NODES + PART
    ),
    "node defaults in small letters": case(BASE + "nodename=default tmpdisk=900000\n" + NODES + PART),
    "partition defaults": case(
        BASE + NODES + "PartitionName=DEFAULT MaxTime=30 MaxNodes=1 AllowGroups=root OverSubscribe=FORCE:4\n" + PART
    ),
    "a partition of all nodes": case(BASE + NODES + "PartitionName=all Nodes=all Default=yes\n", Warn.ALL_NODES),
    "all nodes by default": case(
        BASE + NODES + "PartitionName=DEFAULT Nodes=ALL\nPartitionName=a\nPartitionName=b Nodes=rack1\n", Warn.ALL_NODES
    ),
    "down nodes and node sets": case(
        BASE + NODES + "DownNodes=rack4 State=DOWN Reason=fan\nNodeSet=pair Nodes=rack[1-2]\nPartitionName=p Nodes=pair\n"
    ),
    "no nodes at all": case(BASE),
    "a full node table": case(BASE + "MaxNodeCount=4\n" + NODES + PART, has=("MaxNodeCount=10",)),
    "room in the node table": case(BASE + "MaxNodeCount=64\n" + NODES + PART, has=("MaxNodeCount=64",)),
    "names of another case": case(BASE + "NodeName=H100-1 NodeAddr=10.9.0.1 CPUs=8\nPartitionName=H100 Nodes=H100-1\n"),
    # selection
    "linear": case(BASE + "SelectType=select/linear\n" + NODES + PART, Warn.SELECT_TYPE, has=("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory")),
    "linear with memory": case(
        BASE + "SelectType=select/linear\nSelectTypeParameters=CR_Memory\n" + NODES + PART, Warn.SELECT_TYPE,
        has=("SelectTypeParameters=CR_Core_Memory",),
    ),
    "tres without a share": case(
        BASE + "SelectType=select/cons_tres\nSelectTypeParameters=CR_LLN\n" + NODES + PART, has=("SelectTypeParameters=CR_Core,CR_LLN",)
    ),
    "cons_res": case(
        BASE + "SelectType=select/cons_res\nSelectTypeParameters=CR_CPU_Memory\n" + NODES + PART,
        has=("SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU_Memory"),
    ),
    "selection in an included file": case(
        BASE + NODES + PART + "Include select.conf\n", Warn.SELECT_TYPE,
        files={"select.conf": "SelectType=select/linear\nSelectTypeParameters=CR_Memory\n"},
        has=("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory"),
    ),
    # numbers
    "time-outs that mean never": case(BASE + "SlurmdTimeout=0\n" + NODES + PART, has=("SlurmdTimeout=0",)),
    "higher numbers": case(
        BASE + "SlurmdTimeout=900\nMessageTimeout=100\nUnkillableStepTimeout=200\nTreeWidth=65533\n" + NODES + PART,
        has=("SlurmdTimeout=900", "MessageTimeout=100", "UnkillableStepTimeout=500"),
    ),
    # the head
    "the user not set": case(BASE.replace("SlurmUser=slurm\n", "") + NODES + PART, Warn.DAEMON_USER),
    "the user is root": case(BASE.replace("SlurmUser=slurm\n", "SlurmUser=root\n") + NODES + PART, Warn.DAEMON_USER),
    "an address that begins alike": case(
        BASE.replace(f"({ADDRESS})", f"({ADDRESS}0)") + NODES + PART, Warn.HEAD_ADDRESS, unreachable=True
    ),
    "no address": case(BASE.replace(f"({ADDRESS})", "") + NODES + PART, Warn.HEAD_ADDRESS),
    "an address of its own key": case(
        BASE.replace(f"({ADDRESS})", "") + f"SlurmctldAddr={ADDRESS}\n" + NODES + PART
    ),
    "the old keys": case(
        BASE.replace(f"SlurmctldHost={HEAD}({ADDRESS})\n", f"ControlMachine={HEAD}\nControlAddr={ADDRESS}\n") + NODES + PART
    ),
    "a backup controller": case(BASE.replace("SlurmUser=slurm\n", "SlurmctldHost=two(10.9.0.2)\nSlurmUser=slurm\n") + NODES + PART, Warn.BACKUP_CONTROLLER),
    "listens at one address": case(
        BASE.replace(f"({ADDRESS})", "") + "CommunicationParameters=NoCtldInAddrAny\n" + NODES + PART,
        Warn.HEAD_ADDRESS, Warn.LISTENS_ELSEWHERE,
    ),
    "another port": case(BASE + "SlurmctldPort=6827\n" + NODES + PART, Warn.SLURMCTLD_PORT),
    # what else a site has
    "programs on the nodes": case(
        BASE + "Prolog=/etc/slurm/prolog.sh\nHealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=300\n" + NODES + PART,
        Warn.PROGRAM_ON_MACHINES,
    ),
    "power saving": case(
        BASE + "SuspendProgram=/usr/bin/true\nResumeProgram=/usr/bin/true\nSuspendTime=600\n" + NODES + PART,
        Warn.POWER_SAVING, Warn.POWER_SAVING_TAKEN, has=("SuspendTime=600", "ResumeProgram=/usr/bin/true"),
    ),
    "power saving that somebody has begun to write": case(
        BASE + "SuspendTime=600\nSuspendTimeout=120\nResumeTimeout=7200\nResumeRate=10\nSlurmctldParameters=power_save_min_interval=30\n"
        + NODES + PART,
        has=("SuspendTime=2000000000", "SuspendTimeout=10", "ResumeTimeout=7200", "ResumeRate=0", "SuspendRate=0"),
    ),
    "a program before each job": case(
        BASE + "PrologSlurmctld=/usr/bin/true\n" + NODES + PART, has=("PrologSlurmctld=/usr/lib/meshd/prolog-slurmctld",)
    ),
    "a program before each job, in an included file": case(
        BASE + "Include site.conf\n" + NODES + PART, files={"site.conf": "PrologSlurmctld=/usr/bin/true\nPrivateData=jobs\n"},
        has=("PrologSlurmctld=/usr/lib/meshd/prolog-slurmctld",),
    ),
    "a tree": case(
        BASE + "TopologyPlugin=topology/tree\n" + NODES + PART, Warn.TOPOLOGY, files={"topology.conf": "SwitchName=s1 Nodes=rack[1-4]\n"}
    ),
    "names from the cloud's DNS": case(BASE + "SlurmctldParameters=cloud_dns\n" + NODES + PART, Warn.CLOUD_DNS),
    "gres for every node": case(
        BASE + "GresTypes=gpu\n" + NODES + PART, Warn.GRES_FOR_ALL, files={"gres.conf": "Name=gpu File=/dev/nvidia0\n"}
    ),
    "gres of its own nodes": case(
        BASE + "GresTypes=mps,gpu\nNodeName=rack1 NodeAddr=10.9.0.1 CPUs=8 Gres=gpu:2\nPartitionName=p Nodes=rack1\n",
        files={"gres.conf": "NodeName=rack1 Name=gpu File=/dev/nvidia[0-1]\n"},
    ),
    "control groups": case(
        BASE + CGROUPS + NODES + PART, has=("ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup,task/affinity"),
        files={"cgroup.conf": "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"},
    ),
    "control groups in an included file": case(
        BASE + "Include groups.conf\n" + NODES + PART, has=("Include groups.conf",),
        files={"groups.conf": CGROUPS, "cgroup.conf": "CgroupPlugin=autodetect\nConstrainDevices=yes\n"},
    ),
    "private data": case(BASE + "PrivateData=jobs,nodes\nLaunchParameters=enable_nss_slurm\n" + NODES + PART),
    # what is refused
    "a slot's name": refused(BASE + "NodeName=h100-[2-9] NodeAddr=10.9.0.[2-9] CPUs=1\n" + PART.replace("rack[1-4]", "h100-2"), Refusal.NODE_NAME_TAKEN),
    "a slot's name in a nested include": refused(
        BASE + "Include a.conf\n", Refusal.NODE_NAME_TAKEN, a_conf="Include b.conf\n", b_conf="nodename=x,cpu-[1-2] CPUs=1\n"
    ),
    "a partition's name": refused(BASE + NODES + "PartitionName=h100 Nodes=rack1\n", Refusal.PARTITION_NAME_TAKEN),
    "a partition's name in quotes, in an include": refused(
        BASE + NODES + "Include p.conf\n", Refusal.PARTITION_NAME_TAKEN, p_conf='partitionNAME = "cpu" Nodes=rack1\n'
    ),
    "a node set of a slot's name": refused(BASE + NODES + "NodeSet=h100-1 Nodes=rack1\n" + PART, Refusal.NODESET_NAME_TAKEN),
    "two keys on a line": refused(BASE + "TreeWidth=5 MessageTimeout=6\n" + NODES + PART, Refusal.UNREADABLE_LINE),
    "an indented include": refused(BASE + NODES + "  Include a.conf\n" + PART, Refusal.UNREADABLE_LINE, a_conf="TreeWidth=1\n"),
    "a key without a value": refused(BASE + "MailProg=\n" + NODES + PART, Refusal.UNREADABLE_LINE),
    "a byte order mark": refused("\ufeff" + BASE + NODES + PART, Refusal.BYTE_ORDER_MARK),
    "an include that is missing": refused(BASE + NODES + PART + "Include gone.conf\n", Refusal.INCLUDE_MISSING),
    "a pattern as an include": refused(BASE + NODES + PART + "Include conf.d/*.conf\n", Refusal.INCLUDE_MISSING),
    "includes in a circle": refused(BASE + NODES + PART + "Include a.conf\n", Refusal.INCLUDE_LOOP, a_conf="Include a.conf\n"),
}  # fmt: skip
