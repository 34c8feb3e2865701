#!/usr/bin/env python3
"""torchrun as PyTorch ships it, where PyTorch was built without libuv: its c10d rendezvous takes no such setting.

srun -N3 --bcast=/tmp/torchrun.py ./torchrun.py --nnodes=3 --rdzv-backend=c10d --rdzv-endpoint=NODE:PORT PROGRAM
"""

from __future__ import annotations

import functools
import os
import sys

os.environ["USE_LIBUV"] = "0"  # read by the workers' store, once it is not the agent's
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"

import torch.distributed

torch.distributed.TCPStore = functools.partial(torch.distributed.TCPStore, use_libuv=False)

from torch.distributed.run import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
