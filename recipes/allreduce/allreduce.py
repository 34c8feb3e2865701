#!/usr/bin/env python3
"""Measures how fast the GPUs of a job add up a tensor over the network, and checks each sum.

NCCL where there are GPUs, otherwise gloo. GB/s is the bus bandwidth as nccl-tests computes it: 2 (n - 1) / n of the
bytes, divided by the time. The time of 8 bytes is the latency. With `--pairs` each pair of nodes is measured too.

With `--json` each rank tells who it is, and the first rank of each group what was measured, one document a line:

    {"rank": 0, "node": "h100-1", "device": "NVIDIA H100", "torch": "2.6.0"}
    {"group": ["h100-1", "h100-2"], "bytes": 67108864, "us": 8123.5, "gb_per_s": 8.26, "right": true}
    {"rank": 1, "node": "h100-2", "code": "no_torch", "error": "No module named 'torch'"}
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta

NO_TORCH = 3
LATENCY_BYTES = 8


def say(**values):
    text = json.dumps(values) if args.json else in_words(values)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def in_words(values):
    if "group" in values:
        names = f"{values['group'][0]} and {values['group'][-1]}" if len(values["group"]) < 3 else "all nodes"
        verdict = "" if values["right"] else ": WRONG SUM"
        if values["bytes"] == LATENCY_BYTES:
            return f"{names}: latency {values['us']:.0f} us{verdict}"
        return f"{names}: {values['gb_per_s']:.3f} GB/s{verdict}"
    what = f"FAILED: {values['error']}" if "error" in values else f"{values['device']}, PyTorch {values['torch']}"
    return f"rank {values['rank']} on {values['node']}: {what}"


parser = argparse.ArgumentParser()
parser.add_argument("--mib", type=int, default=64, help="the tensor's size")
parser.add_argument("--repeat", type=int, default=5)
parser.add_argument("--pairs", action="store_true", help="also each pair of nodes")
parser.add_argument("--timeout", type=int, default=120, help="seconds for one sum")
parser.add_argument("--check", action="store_true", help="only tell whether PyTorch is there")
parser.add_argument("--json", action="store_true", help="one JSON document a line")
args = parser.parse_args()

rank, size, node = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["SLURMD_NODENAME"]
try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    say(rank=rank, node=node, error=f"no PyTorch in {sys.executable}: {error}", code="no_torch")
    sys.exit(NO_TORCH)

gpu = torch.cuda.is_available()
say(rank=rank, node=node, device=torch.cuda.get_device_name() if gpu else "cpu", torch=torch.__version__)
if args.check:
    sys.exit()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
else:
    torch.set_num_threads(1)


# Kept to the end: gloo of PyTorch 2.6 may hang in destroy_process_group when tensors of its last sums are gone.
tensors = [torch.empty(size_bytes // 4, device=device) for size_bytes in (LATENCY_BYTES, args.mib << 20)]
told = torch.empty(1, device=device)


def timed(group, members, tensor):
    """Seconds of one all-reduce, and whether all sums were right. The first one only connects."""
    right, begun = True, 0.0
    for turn in range(args.repeat + 1):
        tensor.fill_(float(rank + 1))
        dist.barrier(group=group)
        if gpu:
            torch.cuda.synchronize()
        began = time.monotonic()
        dist.all_reduce(tensor, group=group)
        if gpu:
            torch.cuda.synchronize()
        begun += time.monotonic() - began if turn else 0.0
        wanted = float(sum(one + 1 for one in members))
        right = right and bool((tensor == wanted).all())
    return begun / args.repeat, right


def measure(group, members, nodes):
    """Measure one group; its first rank reports."""
    for tensor in tensors:
        size_bytes = 4 * len(tensor)
        took_s, right = timed(group, members, tensor)
        told.fill_(float(right))
        dist.all_reduce(told, op=dist.ReduceOp.MIN, group=group)
        if rank == members[0]:
            n = len(members)
            rate = 2 * (n - 1) / n * size_bytes / took_s / 1e9 if n > 1 else 0.0
            say(group=nodes, bytes=size_bytes, us=took_s * 1e6, gb_per_s=rate, right=bool(told.item()))


def rounds(nodes):
    """Each pair of nodes once, in rounds whose pairs have no node in common: the circle method."""
    ring = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    for _ in range(len(ring) - 1):
        yield [(a, b) for a, b in zip(ring[: len(ring) // 2], reversed(ring)) if a is not None and b is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


try:
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=args.timeout))
    everyone = [None] * size
    dist.all_gather_object(everyone, node)
    ranks = {one: [at for at, where in enumerate(everyone) if where == one] for one in dict.fromkeys(everyone)}
    measure(dist.group.WORLD, list(range(size)), list(ranks))
    for pairs in rounds(list(ranks)) if args.pairs and len(ranks) > 2 else ():
        # All ranks make each group, in the same order.
        groups = [(pair, dist.new_group(sorted(ranks[pair[0]] + ranks[pair[1]]))) for pair in pairs]
        for pair, group in groups:
            if node in pair:
                measure(group, sorted(ranks[pair[0]] + ranks[pair[1]]), list(pair))
        dist.barrier()
    dist.destroy_process_group()
except RuntimeError as error:
    say(rank=rank, node=node, error=str(error)[:400], code="failed")
    sys.exit(1)
