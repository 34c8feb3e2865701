"""A fleet of hollow machines: the records, and what cloud, tailnet and Slurm say of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import IPv4Address

from meshd.model.hardware import GpuFact, NodeFacts, NodeShape
from meshd.model.ids import MachineName, PoolName, SlotName
from meshd.model.machine import Machine, Phase
from meshd.model.observed import TailnetPeer
from meshd.provider_api import Offer, ProviderName
from meshd.tailnet.status import TailnetTable

GPUS = 8
BORN = datetime(2026, 1, 1, tzinfo=UTC)
AWS = ProviderName("aws")
OFFER = Offer(AWS, "us-east-1", "us-east-1a", "p5.48xlarge", "h100-sxm", GPUS, 80, 192, 2097152, 55.04)
FIRST_IP = int(IPv4Address("100.64.0.10"))


def address(index: int) -> str:
    """The tailnet address of the machine with this index, which counts from 1."""
    return str(IPv4Address(FIRST_IP + index))


def name(index: int) -> str:
    """Its name."""
    return f"lab-h100-{index}-{index:06d}"


def facts(index: int) -> NodeFacts:
    """What its agent told."""
    gpus = tuple(
        GpuFact(g, "NVIDIA H100 80GB HBM3", f"GPU-{index:08d}-{g}", 81559, f"/dev/nvidia{g}") for g in range(GPUS)
    )
    return NodeFacts(
        NodeShape(192, 1, 2, 48, 2, 2063837), gpus, "24.11.5", "1.102.5", "0.1.0", "debian 13", "x86_64", 0.01,
        f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{index:043d}",
    )  # fmt: skip


def ready(index: int) -> Machine:
    """Its record, READY."""
    return Machine(
        name=MachineName(name(index)), pool=PoolName("h100"), slot=SlotName(f"h100-{index}"), provider="aws",
        offer=OFFER, phase=Phase.READY, phase_since=BORN, created_at=BORN, reason="slurmd answers",
        instance_id=f"i-{index:017x}", region="us-east-1", launch_attempts=1, launch_called_at=BORN,
        tailnet_ip=address(index), tailnet_id=f"n{index}", facts=facts(index), munge_ok=True, line_published=True,
        slurmd_started=True, heartbeat_at=datetime.now(UTC), path="direct 10.0.0.1:41641",
        launched_at=BORN, ready_at=BORN,
    )  # fmt: skip


def described(index: int) -> dict[str, object]:
    """Its entry in EC2's DescribeInstances, as boto3 gives it."""
    return {
        "InstanceId": f"i-{index:017x}", "InstanceType": "p5.48xlarge", "State": {"Code": 16, "Name": "running"},
        "LaunchTime": BORN, "PrivateIpAddress": "10.0.0.1", "PublicIpAddress": "192.0.2.1",
        "StateTransitionReason": "", "Tags": [
            {"Key": "Name", "Value": name(index)}, {"Key": "meshd-machine", "Value": name(index)},
            {"Key": "meshd-cluster", "Value": "lab"}, {"Key": "meshd-slot", "Value": f"h100-{index}"},
        ],
    }  # fmt: skip


def peers(count: int) -> TailnetTable:
    """The tailnet with all of them."""
    table = {
        str(i): TailnetPeer(f"n{i}", name(i), address(i), online=True,
                            path="direct 10.0.0.1:41641", tags=("tag:meshd",))
        for i in range(1, count + 1)
    }  # fmt: skip
    return TailnetTable(
        version="1.102.5", backend="Running", self_id="head", self_tailnet_ip="100.64.0.1",
        self_online=True, health=(), peers={peer.id: peer for peer in table.values()},
        ids={int(key): peer.id for key, peer in table.items()},
    )  # fmt: skip


def scontrol_nodes(count: int) -> Iterator[str]:
    """What `scontrol show nodes -o` prints, as seen on 24.11.5."""
    for i in range(1, count + 1):
        yield (
            f"NodeName=h100-{i} Arch=x86_64 CoresPerSocket=48 CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.12 "
            "AvailableFeatures=h100,aws,us-east-1,h100-sxm ActiveFeatures=h100,aws,us-east-1,h100-sxm "
            f"Gres=gpu:h100:{GPUS} NodeAddr={address(i)} NodeHostName=h100-{i} Version=24.11.5 "
            "OS=Linux 6.12.48 #1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1 (2025-09-20) RealMemory=1960645 AllocMem=0 "
            "FreeMem=2011033 Sockets=2 Boards=1 State=IDLE ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
            "Partitions=h100  BootTime=2026-01-01T00:00:00 SlurmdStartTime=2026-01-01T00:01:00 "
            "LastBusyTime=2026-01-01T00:02:00 ResumeAfterTime=None CfgTRES=cpu=192,mem=1960645M,billing=192 AllocTRES= "
            "CurrentWatts=0 AveWatts=0"
        )
