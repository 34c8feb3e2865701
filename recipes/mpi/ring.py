#!/usr/bin/env python3
"""Sends 1 MiB around a ring of all tasks, and adds up a NumPy array over all of them."""

import os
import sys
import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
if size != int(os.environ.get("SLURM_NTASKS", size)):
    sys.exit(f"Slurm started {os.environ['SLURM_NTASKS']} tasks, but MPI sees {size}: srun --mpi=pmix")

message = np.full(1 << 20, rank, dtype=np.uint8)
received = np.empty_like(message)
began = time.monotonic()
world.Sendrecv(message, dest=(rank + 1) % size, recvbuf=received, source=(rank - 1) % size)
took_s = time.monotonic() - began
assert (received == (rank - 1) % size).all(), "the message of another rank"

total = np.empty(4)
world.Allreduce(np.arange(4.0) * rank, total)
assert (total == np.arange(4.0) * sum(range(size))).all(), "a wrong sum"

print(f"rank {rank} of {size} on {os.uname().nodename}: sent 1 MiB in {1000 * took_s:.1f} ms, sum {total.tolist()}")
