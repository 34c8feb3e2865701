#!/usr/bin/env python3
"""Measures the connection between two nodes of a Slurm step, and prints the figures as JSON.

    srun --distribution=arbitrary -w SERVER,CLIENT ./link.py latency|throughput SERVER

The first task answers, the second one connects to it by its node's name.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time

PORT = 20000 + int(os.environ["SLURM_JOB_ID"]) % 10000
CONNECTS, ROUNDS = 100, 500
SECONDS = 5.0
CHUNK = 1 << 17
MORE = b"m"
"""The first byte of each chunk but the last."""
WAIT_S = 20.0


def serve(what: str) -> None:
    """Answer one client."""
    with socket.create_server(("0.0.0.0", PORT), backlog=64) as listener:
        if what == "latency":
            for _ in range(CONNECTS + 1):
                listener.accept()[0].close()
        connection, _ = listener.accept()
        with connection:
            if what == "latency":
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while byte := connection.recv(1):
                    connection.sendall(byte)
            else:
                count, last = 0, False
                while not last:
                    chunk = connection.recv(CHUNK, socket.MSG_WAITALL)
                    count += len(chunk)
                    last = chunk[:1] != MORE  # also where the client has gone
                connection.sendall(str(count).encode())


def connected(host: str) -> socket.socket:
    """A connection, as soon as the other side listens."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return socket.create_connection((host, PORT), timeout=WAIT_S)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    return {"median_ms": 1000 * statistics.median(seconds), "p95_ms": 1000 * statistics.quantiles(seconds, n=20)[-1]}


def latency(host: str) -> dict[str, object]:
    """How long connect and a round trip of one byte take."""
    connected(host).close()
    connects, rounds = [], []
    for _ in range(CONNECTS):
        began = time.perf_counter()
        one = socket.create_connection((host, PORT), timeout=WAIT_S)
        connects.append(time.perf_counter() - began)
        one.close()
    with connected(host) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            rounds.append(time.perf_counter() - began)
    return {"connect": milliseconds(connects), "round_trip": milliseconds(rounds)}


def throughput(host: str) -> dict[str, object]:
    """How fast one stream goes to the other side."""
    with connected(host) as connection:
        data, began = MORE * CHUNK, time.perf_counter()
        while time.perf_counter() < began + SECONDS:
            connection.sendall(data)
        connection.sendall(bytes(CHUNK))  # no half-close: tailscaled's proxy has none
        count = int(connection.recv(64))
        took_s = time.perf_counter() - began
    return {"bytes": count, "seconds": took_s, "mb_per_s": count / took_s / 1e6}


def main() -> None:
    """The task's part."""
    what, host = sys.argv[1:3]
    if os.environ["SLURM_PROCID"] == "0":
        serve(what)
    else:
        print(json.dumps({"latency": latency, "throughput": throughput}[what](host)))


if __name__ == "__main__":
    main()
