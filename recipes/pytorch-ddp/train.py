#!/usr/bin/env python3
"""Trains a small VGG over all GPUs of a job with DistributedDataParallel; goes on from its checkpoint."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from task import Metrics, Pictures, batches, vgg
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=32, help="per GPU")
parser.add_argument("--rate", type=float, default=0.02)
parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="on the share")
args = parser.parse_args()

gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if gpu else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {size} on {os.environ['SLURMD_NODENAME']}: {device}", flush=True)

torch.manual_seed(0)
model = DistributedDataParallel(vgg().to(device), device_ids=[device] if gpu else None)
optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9)
pictures = Pictures()
sampler = DistributedSampler(pictures)

newest, done = args.folder / "newest.pt", 0
found = [newest.exists()]
dist.broadcast_object_list(found)  # a node may not see for a minute what another has written
if found[0]:
    state = torch.load(newest, map_location=device)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]
    if rank == 0:
        print(f"goes on from step {done}", flush=True)


def save(step):
    """Replace the checkpoint: whoever reads it finds a whole one, whenever a node dies."""
    if rank == 0:
        state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, newest.with_suffix(".new"))
        newest.with_suffix(".new").replace(newest)


if rank == 0:
    args.folder.mkdir(parents=True, exist_ok=True)
    metrics = Metrics("pytorch-ddp", args.folder, {"gpus": size, "batch": args.batch * size, "rate": args.rate})
per_epoch = len(batches(sampler, 0, 0, args.batch))
for epoch in range(done // per_epoch, args.epochs):
    loader = DataLoader(pictures, batch_sampler=batches(sampler, epoch, done % per_epoch, args.batch))
    for inputs, classes in loader:
        began = time.monotonic()
        outputs = model(inputs.to(device))
        loss = torch.nn.functional.cross_entropy(outputs, classes.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done % args.checkpoint_every == 0:
            value, took_s = loss.item(), time.monotonic() - began
            save(done)
            if rank == 0:
                metrics.log(done, loss=value, pictures_per_s=args.batch * size / took_s)
save(done)

right = torch.zeros(2, device=device)
model.eval()
with torch.no_grad():
    for inputs, classes in DataLoader(pictures, batch_sampler=batches(sampler, 0, 0, args.batch)):
        right += torch.tensor([(model(inputs.to(device)).argmax(1).cpu() == classes).sum(), len(classes)]).to(device)
dist.all_reduce(right)
if rank == 0:
    metrics.log(done, accuracy=(right[0] / right[1]).item())
    metrics.end()
dist.barrier()  # the last sums are done on all ranks
dist.destroy_process_group()
