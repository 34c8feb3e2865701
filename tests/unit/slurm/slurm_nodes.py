"""Two pools, one node, and the files that they make."""

from __future__ import annotations

from meshd.model.hardware import GpuFact, NodeShape
from meshd.slurm.nodes import HEADER, JoinedNode, PoolLine

H100 = PoolLine("h100", "", 6, "h100", 8, 32, 200000, ("fast",), default=True)
CPU = PoolLine("cpu", "misc", 1, "", 0, 1, 1024)
GPUS = tuple(GpuFact(i, "NVIDIA H100 80GB HBM3", f"GPU-{i}", 81559, f"/dev/nvidia{i}") for i in range(8))
NODE = JoinedNode("h100-2", "100.64.0.2", NodeShape(96, 1, 2, 24, 2, 1000001), GPUS, ("aws", "us-east-1", "spot"))
PLAIN = "TmpDisk=0 Weight=1 CoreSpecCount=0 MemSpecLimit=0"
QUEUE = (
    "MinNodes=0 MaxNodes=UNLIMITED AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL OverSubscribe=NO Hidden=NO "
    "RootOnly=NO PriorityTier=1"
)
GOLDEN = HEADER + (
    'NodeName=cpu-1 NodeAddr=239.192.0.0 CPUs=1 RealMemory=1024 {PLAIN} State=DOWN Reason="meshd: free slot"\n'
    "NodeName=h100-1 NodeAddr=239.192.0.1 CPUs=32 RealMemory=200000 Gres=gpu:h100:8 Feature=h100,fast {PLAIN} "
    'State=DOWN Reason="meshd: free slot"\n'
    "NodeName=h100-2 NodeAddr=100.64.0.2 CPUs=96 Boards=1 SocketsPerBoard=2 CoresPerSocket=24 ThreadsPerCore=2 "
    "RealMemory=950000 Gres=gpu:h100:8 Feature=h100,fast,aws,us-east-1,spot {PLAIN} State=UNKNOWN\n"
    "NodeName=h100-[3-6] NodeAddr=239.192.0.[3-6] CPUs=32 RealMemory=200000 Gres=gpu:h100:8 Feature=h100,fast {PLAIN} "
    'State=DOWN Reason="meshd: free slot"\n'
    "PartitionName=h100 Nodes=h100-[1-6] Default=YES MaxTime=INFINITE State=UP {QUEUE}\n"
    "PartitionName=misc Nodes=cpu-1 Default=NO MaxTime=INFINITE State=UP {QUEUE}\n"
).replace("{PLAIN}", PLAIN).replace("{QUEUE}", QUEUE)
