#!/usr/bin/env python3
"""Trains a small model over all tasks of a Slurm step with PyTorch's DistributedDataParallel, and checks itself.

    srun -N3 --bcast=/tmp/ddp.py ./ddp.py                # one task on each of three nodes
    srun -N3 --bcast=/tmp/ddp.py ./ddp.py ddp fsdp       # then the same with FullyShardedDataParallel

The nodes need PyTorch. Backend: gloo, over the interface that GLOO_SOCKET_IFNAME names (default: tailscale0). Rank 0
listens at MASTER_ADDR (default: the step's first node) and MASTER_PORT. Each task prints one line. The exit code is 0
only if all tasks computed the same parameters and the loss fell.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

env = os.environ
env.setdefault("GLOO_SOCKET_IFNAME", "tailscale0")
env.setdefault("USE_LIBUV", "0")  # Debian's PyTorch is built without libuv

if "RANK" not in env:  # by srun, not by torchrun
    nodes = subprocess.run(
        ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]], capture_output=True, text=True, check=True
    ).stdout.split()
    env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], env["SLURM_NTASKS"]
    env.setdefault("MASTER_ADDR", nodes[0])
    env.setdefault("MASTER_PORT", str(20000 + int(env["SLURM_JOB_ID"]) % 10000))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

STEPS = 50
BATCH = 32
ALL_REDUCES = 3
ALL_REDUCE_MB = 16


def model_of(sharded: bool) -> torch.nn.Module:
    """The model, the same on all ranks at the start."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    if sharded:
        return FullyShardedDataParallel(layers, device_id=torch.device("cpu"))
    return DistributedDataParallel(layers)


def train(model: torch.nn.Module, rank: int) -> tuple[float, float]:
    """Fit the sum of the inputs, each rank with data of its own; the mean loss of all ranks before and after."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 64, generator=data)
        loss = ((model(inputs) - inputs.sum(1, keepdim=True) / 8) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    both = torch.stack([losses[0], losses[-1]])
    dist.all_reduce(both)
    first, last = (both / dist.get_world_size()).tolist()
    return first, last


def all_parameters(model: torch.nn.Module) -> torch.Tensor:
    """All parameters in one row, whole on each rank."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model):
            return torch.cat([one.detach().flatten().clone() for one in model.parameters()])
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def equal_on_all_ranks(row: torch.Tensor) -> bool:
    """Whether each rank has exactly this row."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    KEPT.extend([row, *rows])
    dist.all_gather(rows, row)
    return all(torch.equal(row, one) for one in rows)


KEPT: list[torch.Tensor] = []
"""Tensors of the last sums. A thread of gloo that frees the last reference to one needs the interpreter (PyTorch 2.6):
then destroy_process_group, which waits for that thread, hangs; or Python aborts, if it is about to end.
"""


def leave() -> None:
    """Leave the group, and end gloo's threads with it: what still refers to the group keeps them running."""
    gc.collect()  # FullyShardedDataParallel refers to the group, and to itself
    dist.barrier()
    dist.destroy_process_group()


def all_reduce_mb_per_s() -> float:
    """How fast a tensor is summed over all ranks."""
    tensor = torch.ones(ALL_REDUCE_MB * 1024 * 1024 // 4)
    KEPT.append(tensor)
    dist.barrier()
    began = time.monotonic()
    for _ in range(ALL_REDUCES):
        dist.all_reduce(tensor)
    took_s = time.monotonic() - began
    assert tensor[0].item() == float(dist.get_world_size()) ** ALL_REDUCES, "an all-reduce lost a rank"
    return ALL_REDUCES * ALL_REDUCE_MB / took_s


def trained_well(way: str) -> bool:
    """Train in one way, check, and print a line."""
    rank, began = dist.get_rank(), time.monotonic()
    model = model_of(way == "fsdp")
    first, last = train(model, rank)
    took_s = time.monotonic() - began
    same = equal_on_all_ranks(all_parameters(model))
    speed = all_reduce_mb_per_s()
    well = same and last < first / 2
    print(
        f"{way}: rank {rank} of {dist.get_world_size()} on {env.get('SLURMD_NODENAME', '?')}: "
        f"{'ok' if well else 'FAILED'}, parameters {'equal' if same else 'DIFFER'}, "
        f"loss {first:.3f} -> {last:.3f} in {took_s:.2f} s, all-reduce {speed:.1f} MB/s",
        flush=True,
    )
    return well


def main() -> int:
    """Train in each of the ways that are asked for; the exit code."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    assert size == int(env.get("SLURM_NTASKS", size)), "the group has another size than the step"
    well = [trained_well(way) for way in sys.argv[1:] or ["ddp"]]
    leave()
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
