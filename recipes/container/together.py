#!/usr/bin/env python3
"""Every task tells rank 0 where it is and what it sees. Rank 0 is found by the name of its node."""

import glob
import os
import platform
import socket
import time

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
system = platform.freedesktop_os_release()["PRETTY_NAME"]
gpus = sorted(os.path.basename(path) for path in glob.glob("/dev/nvidia[0-9]*"))
seen = f"rank {rank} of {size} on {os.uname().nodename}: {system}, Python {platform.python_version()}, GPUs {gpus}"

if rank == 0:
    with socket.create_server(("", address[1])) as server:
        print(seen)
        for _ in range(size - 1):
            connection, _ = server.accept()
            print(connection.makefile().read())
else:
    for _ in range(100):  # rank 0 may start a moment later
        try:
            connection = socket.create_connection(address, timeout=10)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    connection.sendall(seen.encode())
    connection.close()
