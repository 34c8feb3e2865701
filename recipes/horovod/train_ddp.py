#!/usr/bin/env python3
"""The program of train.py with PyTorch's own DistributedDataParallel: five lines differ."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 60, 64

# hvd.init(): each task learns from Slurm who it is.
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", rank=rank, world_size=size)
torch.manual_seed(0)
device = torch.device("cuda", int(os.environ["SLURM_LOCALID"])) if torch.cuda.is_available() else torch.device("cpu")
layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)

# hvd.DistributedOptimizer and the two broadcasts: the model averages the gradients, and sends rank 0's weights to all.
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

data = torch.Generator().manual_seed(1 + rank)
first = last = 0.0
for _ in range(STEPS):
    inputs = torch.randn(BATCH, 32, generator=data).to(device)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True) / 6) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    # hvd.allreduce
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    last = float(mean) / size
    first = first or last

weights = sum(float(parameter.abs().sum()) for parameter in model.parameters())
print(f"rank {rank} of {size}: loss {first:.3f} -> {last:.3f}, sum of all weights {weights:.5f}")
dist.barrier()  # the last sums are done on all ranks
dist.destroy_process_group()
