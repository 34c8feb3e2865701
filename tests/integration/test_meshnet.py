"""libmeshnet and meshnetd on a real tailnet: two pods without a TUN device, and a machine with one."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.integration.meshnet_lab import MeshnetLab, Pod, Vm, meshnet_lab

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

ECHO = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], 0))
def serve(inner, peer):
    with inner:
        inner.sendall(f"{peer[0]} {inner.getpeername()[0]} {inner.getsockname()[0]}\\n".encode())
        while data := inner.recv(65536):
            inner.sendall(data)
print(server.getsockname()[0], server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=server.accept(), daemon=True).start()
"""
"""Answers with the addresses it sees, then with what it gets."""


@pytest.fixture(scope="module")
def lab() -> Iterator[MeshnetLab]:
    with TemporaryDirectory(prefix="mn") as folder, meshnet_lab(Path(folder)) as lab:
        yield lab


@pytest.fixture(scope="module")
def pod(lab: MeshnetLab) -> Pod:
    return lab.add(Pod, "pod-a")


@pytest.fixture(scope="module")
def other(lab: MeshnetLab) -> Pod:
    return lab.add(Pod, "pod-b")


@pytest.fixture(scope="module")
def vm(lab: MeshnetLab) -> Vm:
    return lab.add(Vm, "vm")


class Server:
    """A program that listens on a machine."""

    def __init__(self, machine: Any, address: str = "0.0.0.0") -> None:
        self.process = machine.spawn("python3", "-c", ECHO, address)
        self.address, port = self.process.stdout.readline().split()
        self.port = int(port)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def python(machine: Any, code: str, *words: object, timeout_s: float = 60) -> Any:
    """What a program says as JSON in its last line."""
    done = machine.run("python3", "-c", textwrap.dedent(code), *map(str, words), timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


DIAL = """
import errno, json, socket, sys
timeout = float(sys.argv[3]) or None
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout) as s:
        print(json.dumps([s.getpeername()[:2], s.getsockname()[0], s.makefile().readline().split()]))
except OSError as error:
    print(json.dumps(errno.errorcode[error.errno]))
"""


def dial(machine: Any, address: str, port: int, timeout_s: float = 0) -> Any:
    """Peer, own address, and what the server saw; or the error. With a time-out the socket is non-blocking."""
    return python(machine, DIAL, address, port, timeout_s)


@pytest.mark.parametrize("timeout_s", [0, 30])
def test_programs_connect_both_ways_and_see_the_true_addresses(pod: Pod, other: Pod, vm: Vm, timeout_s: float) -> None:
    with Server(other) as on_pod, Server(vm) as on_vm:
        seen = [pod.ipv4, pod.ipv4, other.ipv4]
        assert dial(pod, other.ipv4, on_pod.port, timeout_s) == [[other.ipv4, on_pod.port], pod.ipv4, seen]
        assert dial(pod, other.ipv6, on_pod.port, timeout_s) == [[other.ipv6, on_pod.port], pod.ipv6, seen]
        seen = [pod.ipv4, pod.ipv4, vm.ipv4]
        assert dial(pod, vm.ipv4, on_vm.port, timeout_s) == [[vm.ipv4, on_vm.port], pod.ipv4, seen]
        seen = [vm.ipv4, vm.ipv4, other.ipv4]
        assert dial(vm, other.ipv4, on_pod.port, timeout_s) == [[other.ipv4, on_pod.port], vm.ipv4, seen]


@pytest.mark.parametrize("timeout_s", [0, 30])
def test_a_connect_that_fails_says_why(pod: Pod, other: Pod, vm: Vm, timeout_s: float) -> None:
    assert dial(pod, other.ipv4, 9, timeout_s) == "ECONNREFUSED"
    assert dial(pod, vm.ipv4, 9, timeout_s) == "ECONNREFUSED"
    assert dial(pod, pod.ipv4, 9, timeout_s) == "ECONNREFUSED"
    assert dial(pod, "100.64.77.77", 9, timeout_s) == "EHOSTUNREACH"


def test_the_own_address_is_loopback_under_its_own_name(pod: Pod) -> None:
    with Server(pod, pod.ipv4) as bound, Server(pod) as wild:
        assert bound.address == pod.ipv4
        assert wild.address == "0.0.0.0"
        for server in (bound, wild):
            assert dial(pod, pod.ipv4, server.port) == [[pod.ipv4, server.port], pod.ipv4, [pod.ipv4] * 3]
        assert dial(pod, "127.0.0.1", wild.port) == [["127.0.0.1", wild.port], "127.0.0.1", ["127.0.0.1"] * 3]
