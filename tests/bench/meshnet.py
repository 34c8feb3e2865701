"""Connections of a machine without a TUN device, beside those of one with it: time to connect, round trip, throughput.

Real tailscaled, meshnetd and libmeshnet between namespaces of this host, so both ends share its cores. `TUN to TUN` is
two machines with a TUN device; `proxy alone` speaks SOCKS5 to tailscaled's proxy without the library, and so shows what
the library and meshnetd add. The last rows are calls that have nothing to do with the tailnet, with the library and
without.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench.report import Row, report
from tests.integration.meshnet_lab import Machine, MeshnetLab, Pod, Vm, meshnet_lab

PYTHON = "/usr/bin/python3"
ROUNDS = 200

SERVER = """
import socket, sys, threading
server = socket.create_server(("0.0.0.0", 0), backlog=512)
def serve(inner):
    with inner:
        line = b""
        while not line.endswith(b"\\n"):
            if not (byte := inner.recv(1)):
                return
            line += byte
        what, count = line.split()
        if what == b"echo":
            while data := inner.recv(65536):
                inner.sendall(data)
        else:
            view, left = memoryview(bytearray(1 << 20)), int(count)
            while left:
                left -= inner.recv_into(view, min(left, len(view)))
            inner.sendall(b"!")
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

CLIENT = """
import json, socket, statistics, sys, time
address, port, proxy, rounds, amount = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "proxy", *map(int, sys.argv[4:])
def dial():
    if not proxy:
        s = socket.create_connection((address, port))
    else:
        s = socket.create_connection(("127.0.0.1", 1055))
        s.sendall(b"\\5\\1\\0\\5\\1\\0\\1" + socket.inet_aton(address) + port.to_bytes(2, "big"))
        got = b""
        while len(got) < 12:
            got += s.recv(12 - len(got))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s
connects = []
for _ in range(rounds):
    began = time.perf_counter()
    s = dial()
    connects.append(time.perf_counter() - began)
    s.close()
s = dial()
s.sendall(b"echo 0\\n")
trips = []
for _ in range(rounds * 5):
    began = time.perf_counter()
    s.sendall(b"x")
    s.recv(1)
    trips.append(time.perf_counter() - began)
s.close()
s = dial()
s.sendall(b"sink %d\\n" % amount)
part = bytes(1 << 20)
began = time.perf_counter()
for _ in range(amount // len(part)):
    s.sendall(part)
s.recv(1)
took = time.perf_counter() - began
print(json.dumps([statistics.median(connects), statistics.median(trips), amount / took]))
"""

CALLS = """
import json, os, socket, time
def each(call, n=20000):
    began = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - began) / n
server = socket.create_server(("127.0.0.1", 0))
s = socket.create_connection(server.getsockname())
inner, _ = server.accept()
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
name = udp.getsockname()
def connect():
    with socket.socket() as one:
        one.connect(server.getsockname())
    server.accept()[0].close()
print(json.dumps({
    "connect and accept on 127.0.0.1": each(connect, 2000),
    "getpeername on 127.0.0.1": each(s.getpeername),
    "sendto on 127.0.0.1": each(lambda: udp.sendto(b"x", name)),
    "uname": each(os.uname),
}))
"""


def _measure(machine: Machine, server: Machine, port: int, how: str, amount: int) -> tuple[float, float, float]:
    words = [server.ipv4, str(port), how, str(ROUNDS), str(amount)]
    done = machine.run(PYTHON, "-c", CLIENT, *words, check=True, timeout_s=300)
    connect, trip, rate = json.loads(done.stdout)
    return connect, trip, rate


def _run(runs: int, amount: int) -> None:
    with TemporaryDirectory(prefix="mb") as folder, meshnet_lab(Path(folder)) as lab:
        rows, details = _rows(lab, runs, amount)
    report("meshnet", rows, details)


def _rows(lab: MeshnetLab, runs: int, amount: int) -> tuple[list[Row], dict[str, Any]]:
    a, b = lab.add(Pod, "pod-a"), lab.add(Pod, "pod-b")
    v, w = lab.add(Vm, "vm-a"), lab.add(Vm, "vm-b")
    pairs = {
        "TUN to TUN": (v, w, "plain"),
        "TUN to pod": (v, b, "plain"),
        "pod to TUN": (a, w, "plain"),
        "pod to TUN, proxy alone": (a, w, "proxy"),
        "pod to pod": (a, b, "plain"),
        "pod to its own address": (a, a, "plain"),
    }
    servers = {machine: machine.spawn(PYTHON, "-c", SERVER) for machine in (a, b, w)}
    ports = {machine: int(process.stdout.readline()) for machine, process in servers.items() if process.stdout}
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in pairs}
    try:
        for _ in range(runs):
            for name, (machine, server, how) in pairs.items():
                seen[name].append(_measure(machine, server, ports[server], how, amount))
    finally:
        for process in servers.values():
            process.kill()
            process.communicate()
    rows = []
    for name, found in seen.items():
        middle = [median(one[i] for one in found) for i in range(3)]
        rows.append(Row(f"{name}: connect", middle[0] * 1e3, "ms"))
        rows.append(Row(f"{name}: round trip", middle[1] * 1e3, "ms"))
        rows.append(Row(f"{name}: throughput", middle[2] / 2**20, "MiB/s"))
    preload = f"LD_PRELOAD={lab.built / 'libmeshnet.so'}"
    with_it, without = (
        json.loads(a.run("env", word, PYTHON, "-c", CALLS, check=True).stdout) for word in (preload, "LD_PRELOAD=")
    )
    for call, took in with_it.items():
        rows.append(Row(f"{call}, with the library", took * 1e6, "us"))
        rows.append(Row(f"{call}, without", without[call] * 1e6, "us"))
    return rows, {"runs": runs, "amount": amount, "seen": seen}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mib", type=int, default=128, help="how much is sent")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root: it makes namespaces")
    _run(arguments.runs, arguments.mib << 20)


if __name__ == "__main__":
    main()
