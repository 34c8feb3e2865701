#!/usr/bin/env python3
"""Trains a small VGG whose parameters are sharded over all GPUs of a job; goes on from its checkpoint."""

import argparse
import os
import shutil
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from task import Metrics, Pictures, batches, vgg
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=32, help="per GPU")
parser.add_argument("--rate", type=float, default=0.001)
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


def sharded(model):
    """Shard each block by itself, then what is left. PyTorch 2.6 can do that on GPUs only."""
    if gpu or hasattr(torch.cpu.Stream, "record_event"):
        from torch.distributed.fsdp import fully_shard

        for block in model[:-2]:
            fully_shard(block)
        return fully_shard(model)
    from torch.distributed.fsdp import FullyShardedDataParallel

    warnings.simplefilter("ignore")
    return FullyShardedDataParallel(model, device_id=device)


torch.manual_seed(0)
model = sharded(vgg().to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
pictures = Pictures()
sampler = DistributedSampler(pictures)


def state():
    """What a checkpoint holds; each rank has its own part of it."""
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments}


def newest():
    """The step of the newest checkpoint, as rank 0 sees it: its name is in the file `newest`; 0 without one."""
    note = args.folder / "newest"
    step = [int(note.read_text()) if rank == 0 and note.exists() else 0]
    dist.broadcast_object_list(step)
    return step[0]


def save(step):
    """Each rank writes its part of the checkpoint. It counts once all parts are there; then the old one goes."""
    old = newest()
    checkpoint.save(state(), checkpoint_id=args.folder / str(step))
    if rank == 0:
        note = args.folder / "newest.new"
        note.write_text(str(step))
        note.replace(args.folder / "newest")
        if old not in (0, step):
            shutil.rmtree(args.folder / str(old))


if rank == 0:
    args.folder.mkdir(parents=True, exist_ok=True)
    metrics = Metrics("pytorch-fsdp", args.folder, {"gpus": size, "batch": args.batch * size, "rate": args.rate})
done = newest()
if done:
    read = state()
    checkpoint.load(read, checkpoint_id=args.folder / str(done))
    set_state_dict(model, optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"])
    if rank == 0:
        print(f"goes on from step {done}", flush=True)

mean = torch.zeros((), device=device)
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
        mean.copy_(loss.detach())
        done += 1
        if done % args.checkpoint_every == 0:
            value, took_s = loss.item(), time.monotonic() - began
            save(done)
            if rank == 0:
                metrics.log(done, loss=value, pictures_per_s=args.batch * size / took_s)
save(done)

dist.all_reduce(mean)
if rank == 0:
    metrics.log(done, mean_loss=mean.item() / size)
    metrics.end()
dist.barrier()  # the last sums are done on all ranks
dist.destroy_process_group()
