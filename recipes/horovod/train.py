#!/usr/bin/env python3
"""Fits a small network with Horovod. train_ddp.py is the same program with PyTorch's own DistributedDataParallel."""

import horovod.torch as hvd
import torch

STEPS, BATCH = 60, 64

hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

# Averages the gradients of all ranks before each step.
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

data = torch.Generator().manual_seed(1 + hvd.rank())
first = last = 0.0
for _ in range(STEPS):
    inputs = torch.randn(BATCH, 32, generator=data)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True) / 6) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    last = float(hvd.allreduce(loss.detach(), name="loss"))
    first = first or last

weights = sum(float(parameter.abs().sum()) for parameter in model.parameters())
print(f"rank {hvd.rank()} of {hvd.size()}: loss {first:.3f} -> {last:.3f}, sum of all weights {weights:.5f}")
