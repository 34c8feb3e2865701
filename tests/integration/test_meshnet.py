"""libmeshnet and meshnetd on a real tailnet: two pods without a TUN device, and a machine with one.

What the library does shows in programs: each test runs some in a machine, and compares what they see.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.integration.meshnet_lab import Machine, MeshnetLab, Pod, Vm, meshnet_lab, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

PYTHON = "/usr/bin/python3"
"""One that every user can run."""

NOBODY = "100.64.77.77"
"""An address of the tailnet that no machine has."""

ECHO = """
import socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family, backlog=512, dualstack_ipv6=sys.argv[1] == "::")
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
    with TemporaryDirectory(prefix="mn") as folder, meshnet_lab(Path(folder), sanitized=True) as lab:
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


class Program:
    """A Python program that runs on a machine, and talks in lines."""

    def __init__(self, machine: Machine, code: str, *words: object) -> None:
        self.process = machine.spawn(PYTHON, "-c", textwrap.dedent(code), *map(str, words))

    def read(self) -> Any:
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        return json.loads(line)

    def go(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class Server(Program):
    """An echo server on a machine."""

    def __init__(self, machine: Machine, address: str = "0.0.0.0") -> None:
        super().__init__(machine, ECHO, address)
        self.address, port = self.process.stdout.readline().split()
        self.port = int(port)


@pytest.fixture(scope="module")
def echo(other: Pod) -> Iterator[Server]:
    """On the other pod."""
    with Server(other) as server:
        yield server


def python(machine: Machine, code: str, *words: object, before: tuple[str, ...] = (), timeout_s: float = 60) -> Any:
    """What a program says as JSON in its last line."""
    done = machine.run(*before, PYTHON, "-c", textwrap.dedent(code), *map(str, words), timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


DIAL = """
import errno, json, socket, sys
timeout = float(sys.argv[3]) or None
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout) as s:
        print(json.dumps([s.getpeername()[:2], s.getsockname()[0], s.makefile().readline().split()]))
except TimeoutError as error:
    print(json.dumps(errno.errorcode[error.errno] if error.errno else "late"))
except OSError as error:
    print(json.dumps(errno.errorcode[error.errno]))
"""


def dial(machine: Machine, address: str, port: int, timeout_s: float = 0, before: tuple[str, ...] = ()) -> Any:
    """Peer, own address, and what the server saw; or the error. With a time-out the socket is non-blocking."""
    return python(machine, DIAL, address, port, timeout_s, before=before)


@contextmanager
def stopped(machine: Machine, service: str = "tailscaled") -> Iterator[None]:
    machine.signal(service, signal.SIGSTOP)
    try:
        yield
    finally:
        machine.signal(service, signal.SIGCONT)


def descriptors(machine: Pod) -> int:
    return len(os.listdir(f"/proc/{machine.pid('meshnetd')}/fd"))


@pytest.mark.parametrize("timeout_s", [0, 30])
def test_programs_connect_both_ways_and_see_the_true_addresses(
    pod: Pod, other: Pod, vm: Vm, echo: Server, timeout_s: float
) -> None:
    with Server(vm) as on_vm:
        seen = [pod.ipv4, pod.ipv4, other.ipv4]
        assert dial(pod, other.ipv4, echo.port, timeout_s) == [[other.ipv4, echo.port], pod.ipv4, seen]
        assert dial(pod, other.ipv6, echo.port, timeout_s) == [[other.ipv6, echo.port], pod.ipv6, seen]
        seen = [pod.ipv4, pod.ipv4, vm.ipv4]
        assert dial(pod, vm.ipv4, on_vm.port, timeout_s) == [[vm.ipv4, on_vm.port], pod.ipv4, seen]
        seen = [vm.ipv4, vm.ipv4, other.ipv4]
        assert dial(vm, other.ipv4, echo.port, timeout_s) == [[other.ipv4, echo.port], vm.ipv4, seen]


def test_servers_with_ipv6_sockets(pod: Pod, other: Pod, vm: Vm) -> None:
    with Server(other, "::") as wild, Server(other, other.ipv6) as bound:
        mapped = [f"::ffff:{vm.ipv4}", f"::ffff:{vm.ipv4}", f"::ffff:{other.ipv4}"]
        assert dial(vm, other.ipv4, wild.port) == [[other.ipv4, wild.port], vm.ipv4, mapped]
        assert bound.address == other.ipv6
        assert dial(vm, other.ipv6, bound.port)[2] == [vm.ipv6, vm.ipv6, other.ipv6]
        assert dial(pod, other.ipv6, bound.port)[2] == [pod.ipv6, pod.ipv6, other.ipv6]
        assert dial(pod, f"::ffff:{other.ipv4}", wild.port)[0] == [f"::ffff:{other.ipv4}", wild.port]


@pytest.mark.parametrize("timeout_s", [0, 30])
def test_a_connect_that_fails_says_why(pod: Pod, other: Pod, vm: Vm, timeout_s: float) -> None:
    assert dial(pod, other.ipv4, 9, timeout_s) == "ECONNREFUSED"
    assert dial(pod, vm.ipv4, 9, timeout_s) == "ECONNREFUSED"
    assert dial(pod, pod.ipv4, 9, timeout_s) == "ECONNREFUSED"
    assert dial(pod, NOBODY, 9, timeout_s) == "EHOSTUNREACH"
    assert dial(pod, "100.100.100.100", 53, timeout_s) == "EHOSTUNREACH"


def test_the_own_address_is_loopback_under_its_own_name(pod: Pod) -> None:
    with Server(pod, pod.ipv4) as bound, Server(pod) as wild:
        assert bound.address == pod.ipv4
        assert wild.address == "0.0.0.0"
        for server in (bound, wild):
            assert dial(pod, pod.ipv4, server.port) == [[pod.ipv4, server.port], pod.ipv4, [pod.ipv4] * 3]
        own6 = [[pod.ipv6, wild.port], pod.ipv6, [pod.ipv4] * 3]
        assert dial(pod, pod.ipv6, wild.port) == own6
        assert dial(pod, "127.0.0.1", wild.port) == [["127.0.0.1", wild.port], "127.0.0.1", ["127.0.0.1"] * 3]
        # A local program of another user is no peer of the tailnet either.
        assert dial(pod, "127.0.0.1", wild.port, before=("setpriv", "--reuid=65534"))[2] == ["127.0.0.1"] * 3


def test_a_socket_that_is_bound_to_the_own_address_connects(pod: Pod, other: Pod, echo: Server) -> None:
    code = """
        import json, socket, sys
        seen = []
        with socket.create_server((sys.argv[1], 0)) as own:
            for address in (sys.argv[2], int(sys.argv[3])), own.getsockname():
                s = socket.create_connection(address, source_address=(sys.argv[1], 0))
                if address == own.getsockname():
                    inner, peer = own.accept()
                    inner.sendall(f"{peer[0]}\\n".encode())
                    s.shutdown(socket.SHUT_WR)
                    assert inner.recv(1) == b""
                seen.append([s.getsockname()[0], s.getpeername()[0], s.makefile().readline().split()[0]])
        print(json.dumps(seen))
    """
    found = python(pod, code, pod.ipv4, other.ipv4, echo.port)
    assert found == [[pod.ipv4, other.ipv4, pod.ipv4], [pod.ipv4] * 3]


def test_a_pending_connect_is_pending_to_everyone(pod: Pod, other: Pod, echo: Server) -> None:
    code = """
        import errno, json, os, select, socket, sys
        s = socket.socket()
        s.setblocking(False)
        to = (sys.argv[1], int(sys.argv[2]))
        first = errno.errorcode[s.connect_ex(to)]
        epoll, poll = select.epoll(), select.poll()
        epoll.register(s, select.EPOLLOUT)
        poll.register(s, select.POLLOUT)
        early = [epoll.poll(0.1), poll.poll(0), select.select([], [s], [], 0)[1]]
        second = errno.errorcode[s.connect_ex(to)]
        name = s.getsockname()[0]
        try:
            s.getpeername()
            peer = None
        except OSError as error:
            peer = errno.errorcode[error.errno]
        print(json.dumps([first, early, second, name, peer]), flush=True)
        sys.stdin.readline()
        late = [[e for _, e in epoll.poll(30)], [e for _, e in poll.poll(30000)]]
        late.append(len(select.select([], [s], [], 30)[1]))
        error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        s.connect_ex(to)
        print(json.dumps([late, error, errno.errorcode[s.connect_ex(to)], s.getpeername()[0]]), flush=True)
    """
    with stopped(other):
        program = Program(pod, code, other.ipv4, echo.port)
        assert program.read() == ["EINPROGRESS", [[], [], []], "EALREADY", pod.ipv4, "ENOTCONN"]
    with program:
        program.go()
        assert program.read() == [[[4], [4], 1], 0, "EISCONN", other.ipv4]


def test_a_socket_that_was_refused_can_try_again(pod: Pod, other: Pod, echo: Server) -> None:
    code = """
        import errno, json, select, socket, sys
        seen = []
        for blocking in True, False:
            for look in True, False:
                s = socket.socket()
                s.setblocking(blocking)
                def attempt(port):
                    code = s.connect_ex((sys.argv[1], port))
                    if code == errno.EINPROGRESS:
                        select.select([], [s], [], 30)
                        code = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if look else \\
                            s.connect_ex((sys.argv[1], port))
                    return errno.errorcode.get(code, code)
                seen.append([attempt(9), attempt(9), attempt(int(sys.argv[2]))])
        print(json.dumps(seen))
    """
    assert python(pod, code, other.ipv4, echo.port) == [["ECONNREFUSED", "ECONNREFUSED", 0]] * 4


def test_a_peer_that_is_off_is_a_time_out(pod: Pod, vm: Vm) -> None:
    with stopped(vm):
        began = time.monotonic()
        assert dial(pod, vm.ipv4, 9) == "ETIMEDOUT"
        assert 4 < time.monotonic() - began < 20
        # The program's own limit comes first where it is shorter.
        code = """
            import errno, json, socket, struct, sys, time
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300000))
            began = time.monotonic()
            code = s.connect_ex((sys.argv[1], 9))
            print(json.dumps([errno.errorcode[code], 0.25 < time.monotonic() - began < 3]))
        """
        assert python(pod, code, vm.ipv4) == ["EINPROGRESS", True]


INTERRUPTED = """
import ctypes, errno, json, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(round(time.monotonic() - began, 1)))
signal.siginterrupt(signal.SIGALRM, sys.argv[3] == "interrupt")
s = socket.socket()
where = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", int(sys.argv[2]), socket.inet_aton(sys.argv[1]))
began = time.monotonic()
signal.setitimer(signal.ITIMER_REAL, 0.2)
print(json.dumps("begin"), flush=True)
rc = libc.connect(s.fileno(), where, len(where))
code = ctypes.get_errno() if rc else 0
print(json.dumps([errno.errorcode.get(code, code), time.monotonic() - began >= 0.15]), flush=True)
sys.stdin.readline()
print(json.dumps(errno.errorcode.get(c := s.connect_ex((sys.argv[1], int(sys.argv[2]))), c)), flush=True)
"""


def test_signals_interrupt_a_blocking_connect_as_the_kernel_has_it(pod: Pod, other: Pod, echo: Server) -> None:
    with stopped(other):
        interrupted = Program(pod, INTERRUPTED, other.ipv4, echo.port, "interrupt")
        restarted = Program(pod, INTERRUPTED, other.ipv4, echo.port, "restart")
        assert interrupted.read() == restarted.read() == "begin"
        assert interrupted.read() == ["EINTR", True]
    with interrupted, restarted:
        assert restarted.read() == [0, True]
        interrupted.go()
        restarted.go()
        assert interrupted.read() in (0, "EISCONN")
        assert restarted.read() == "EISCONN"


def test_sockets_survive_fork_exec_and_threads(pod: Pod, other: Pod, echo: Server) -> None:
    code = """
        import json, os, socket, subprocess, sys, threading
        to = (sys.argv[1], int(sys.argv[2]))
        def body(): seen.append(socket.create_connection(to).makefile().readline().split()[0])
        seen = []
        threads = [threading.Thread(target=body) for _ in range(20)]
        [t.start() for t in threads]; [t.join() for t in threads]
        s = socket.create_connection(to)
        other = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); "
        other += "print(s.getpeername()[0], s.getsockname()[0])"
        words = [sys.executable, "-c", other, str(s.fileno())]
        told = subprocess.run(words, pass_fds=[s.fileno()], capture_output=True, text=True)
        pid = os.fork()
        if pid == 0:
            good = s.getpeername() == to and socket.create_connection(to).getpeername() == to
            os._exit(0 if good else 1)
        print(json.dumps([sorted(set(seen)), len(seen), told.stdout.split(), os.waitpid(pid, 0)[1]]))
    """
    assert python(pod, code, other.ipv4, echo.port) == [[pod.ipv4], 20, [other.ipv4, pod.ipv4], 0]


def test_short_connections_leak_nothing(pod: Pod, other: Pod, echo: Server) -> None:
    code = """
        import asyncio, json, os, sys
        async def one(port, size):
            reader, writer = await asyncio.open_connection(sys.argv[1], port)
            writer.write(b"x" * size)
            await reader.readline()
            got = await reader.readexactly(size)
            writer.close()
            await writer.wait_closed()
            return len(got)
        async def main():
            port, count = int(sys.argv[2]), lambda: len(os.listdir("/proc/self/fd"))
            before = count()
            sizes = []
            for _ in range(10):
                sizes += await asyncio.gather(*(one(port, 20000) for _ in range(50)))
                refused = await asyncio.gather(*(one(9, 1) for _ in range(5)), return_exceptions=True)
                assert all(isinstance(error, ConnectionRefusedError) for error in refused), refused
            print(json.dumps([sum(sizes), count() - before]))
        asyncio.run(main())
    """
    dial(pod, other.ipv4, echo.port)

    def fewest() -> int:
        """Connections of earlier tests may still be coming to their ends."""
        return min(descriptors(pod) for _ in range(3))

    before = wait_until(lambda: (n := fewest()) < 20 and n, "meshnetd has come to rest")
    assert python(pod, code, other.ipv4, echo.port) == [10000000, 0]
    # Up to 64 pipes are kept for the next bytes.
    wait_until(lambda: descriptors(pod) <= before + 128, "meshnetd has closed what it opened")

    def others() -> int:
        """Its descriptors that are no pipes."""
        found = 0
        for entry in Path(f"/proc/{pod.pid('meshnetd')}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found += "pipe:" not in os.readlink(entry)
        return found

    wait_until(lambda: others() <= before, "only pipes are kept")


def test_what_a_half_closed_program_is_told_still_arrives(pod: Pod, other: Pod) -> None:
    code = """
        import json, socket, sys, time
        server = socket.create_server(("0.0.0.0", 0))
        print(json.dumps(server.getsockname()[1]), flush=True)
        inner, _ = server.accept()
        asked = inner.recv(9)
        time.sleep(0.3)  # the end of what the program says must not overtake the answer
        inner.sendall(b"answer" * 100000)
        inner.close()
    """
    client = """
        import json, socket, sys
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
        s.sendall(b"question")
        s.shutdown(socket.SHUT_WR)
        print(json.dumps(len(s.makefile("rb").read())))
    """
    with Program(other, code) as server:
        assert python(pod, client, other.ipv4, server.read()) == 600000


def test_the_end_of_a_one_way_connection_arrives(pod: Pod, vm: Vm) -> None:
    """The proxy cannot carry a half-close: the other side learns it once nothing more has come for 10 s."""
    code = """
        import json, socket
        server = socket.create_server(("0.0.0.0", 0))
        print(json.dumps(server.getsockname()[1]), flush=True)
        inner, _ = server.accept()
        print(json.dumps(len(inner.makefile("rb").read())), flush=True)
        inner.close()
    """
    client = """
        import errno, json, socket, sys
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
        s.sendall(b"x" * 300000)
        if sys.argv[3] == "close":
            s.close()
            print(json.dumps("closed"))
        else:
            s.shutdown(socket.SHUT_WR)
            try:
                print(json.dumps(len(s.recv(1))))
            except OSError as error:
                print(json.dumps(errno.errorcode[error.errno]))
    """
    for how, told, at_most_s in ("close", "closed", 9), ("shutdown", "ECONNRESET", 30):
        with Program(vm, code) as server:
            port, began = server.read(), time.monotonic()
            assert python(pod, client, vm.ipv4, port, how) == told
            assert server.read() == 300000
            assert time.monotonic() - began < at_most_s


def test_datagrams_to_the_tailnet_are_refused(pod: Pod, other: Pod) -> None:
    code = """
        import ctypes, errno, json, socket, sys
        def tried(call, *arguments):
            try:
                call(*arguments)
                return 0
            except OSError as error:
                return errno.errorcode[error.errno]
        s, to, own = socket.socket(type=socket.SOCK_DGRAM), (sys.argv[1], 9), sys.argv[2]
        six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        seen = [tried(s.sendto, b"x", to), tried(s.sendmsg, [b"x"], [], 0, to), tried(s.connect, to)]
        seen.append(tried(six.sendto, b"x", (sys.argv[3], 9)))
        with socket.socket(type=socket.SOCK_DGRAM) as server:
            server.bind((own, 0))
            name = server.getsockname()
            s.sendto(b"1", name)
            s.sendmsg([b"2"], [], 0, name)
            s.connect(name)
            s.send(b"3")
            seen.append([name[0] == own, b"".join(server.recv(9) for _ in range(3)).decode()])
        raw = socket.socket(type=socket.SOCK_RAW, proto=socket.IPPROTO_ICMP)
        seen.append(tried(raw.sendto, b"\\x08" + bytes(7), (sys.argv[1], 0)))
        print(json.dumps(seen))
    """
    refused = ["ENETUNREACH"] * 4
    assert python(pod, code, other.ipv4, pod.ipv4, other.ipv6) == [*refused, [True, "123"], "ENETUNREACH"]


SENDMMSG = """
import ctypes, errno, json, socket, sys
class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("len", ctypes.c_size_t)]
class Msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(Iovec)),
                ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int)]
class Mmsghdr(ctypes.Structure):
    _fields_ = [("hdr", Msghdr), ("len", ctypes.c_uint)]
libc = ctypes.CDLL(None, use_errno=True)
def name(address, port):
    return bytes(ctypes.c_uint16(socket.AF_INET)) + port.to_bytes(2, "big") + socket.inet_aton(address) + bytes(8)
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind((sys.argv[2], 0))
port = server.getsockname()[1]
s = socket.socket(type=socket.SOCK_DGRAM)
def send(*names):
    messages = (Mmsghdr * len(names))()
    for message, one in zip(messages, names):
        message.hdr = Msghdr(one, len(one), ctypes.pointer(Iovec(b"abc", 3)), 1, None, 0, 0)
    n = libc.sendmmsg(s.fileno(), messages, len(names), 0)
    return [n, errno.errorcode[ctypes.get_errno()] if n < 0 else [m.len for m in messages[:n]]]
own, far, near = name(sys.argv[2], port), name(sys.argv[1], 9), name("127.0.0.1", port)
print(json.dumps([send(own, near), send(far, own), send(near, own, far, own), send(near)]))
"""


def test_sendmmsg_sends_up_to_the_first_that_is_refused(pod: Pod, other: Pod) -> None:
    found = python(pod, SENDMMSG, other.ipv4, pod.ipv4)
    assert found == [[2, [3, 3]], [-1, "ENETUNREACH"], [2, [3, 3]], [1, [3]]]


TRUNCATED = """
import ctypes, errno, json, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def named(call, s, room):
    data, n = ctypes.create_string_buffer(b"\\xee" * 64, 64), ctypes.c_uint(room)
    rc = call(s.fileno(), data, ctypes.byref(n))
    untouched = data.raw[min(room, 16):] == b"\\xee" * (64 - min(room, 16))
    return [rc, n.value, untouched, socket.inet_ntoa(data.raw[4:8]) if room >= 8 else ""]
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
seen = [named(call, s, room) for call in (libc.getpeername, libc.getsockname) for room in (64, 16, 8, 2, 0)]
server = socket.create_server((sys.argv[3], 0))
clients = [socket.create_connection(server.getsockname()) for _ in range(3)]
seen += [[libc.accept(server.fileno(), None, None) >= 0]]
data, n = ctypes.create_string_buffer(8), ctypes.c_uint(8)
made = libc.accept4(server.fileno(), data, ctypes.byref(n), 0o2000000)
seen += [[made >= 0, n.value, socket.inet_ntoa(data.raw[4:8])]]
seen += [[libc.getpeername(s.fileno(), None, None), errno.errorcode[ctypes.get_errno()]]]
seen += [[libc.getpeername(999, data, ctypes.byref(n)), errno.errorcode[ctypes.get_errno()]]]
a, b = socket.socketpair()
seen += [[a.getpeername(), a.getsockname()]]
print(json.dumps(seen))
"""


def test_addresses_are_given_as_the_kernel_gives_them(pod: Pod, other: Pod, echo: Server) -> None:
    found = python(pod, TRUNCATED, other.ipv4, echo.port, pod.ipv4)
    for rows, address in (found[:5], other.ipv4), (found[5:10], pod.ipv4):
        assert rows == [[0, 16, True, address if room >= 8 else ""] for room in (64, 16, 8, 2, 0)]
    assert found[10:] == [[True], [True, 16, pod.ipv4], [-1, "EFAULT"], [-1, "EBADF"], ["", ""]]


INTERFACES = """
import ctypes, fcntl, json, os, socket, struct, sys
class Ifaddrs(ctypes.Structure):
    pass
Ifaddrs._fields_ = [("next", ctypes.POINTER(Ifaddrs)), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint),
                    ("addr", ctypes.POINTER(ctypes.c_ubyte * 28)), ("mask", ctypes.POINTER(ctypes.c_ubyte * 28))]
libc = ctypes.CDLL(None)
def addresses():
    first, found = ctypes.POINTER(Ifaddrs)(), []
    assert libc.getifaddrs(ctypes.byref(first)) == 0
    one = first
    while one:
        entry = one.contents
        if entry.name == b"tailscale0":
            data, mask = bytes(entry.addr.contents), bytes(entry.mask.contents)
            four = int.from_bytes(data[:2], sys.byteorder) == socket.AF_INET
            text = socket.inet_ntoa(data[4:8]) if four else socket.inet_ntop(socket.AF_INET6, data[8:24])
            found.append([text, entry.flags & 0x41, (mask[4:8] if four else mask[8:24]).hex().strip("f")])
        one = entry.next
    libc.freeifaddrs(first)
    return found
[addresses() for _ in range(100)]
s = socket.socket(type=socket.SOCK_DGRAM)
def ask(request, name=b"tailscale0"):
    return fcntl.ioctl(s, request, struct.pack("16s24x", name))
names, size = bytearray(40 * 64), 40 * 64
buffer = (ctypes.c_char * size).from_buffer(names)
conf = fcntl.ioctl(s, 0x8912, struct.pack("iP", size, ctypes.addressof(buffer)))
listed = struct.unpack("iP", conf)[0]
room = struct.unpack("iP", fcntl.ioctl(s, 0x8912, struct.pack("iP", 0, 0)))[0]
rows = [bytes(names[i : i + 40]) for i in range(0, listed, 40)]
entries = {row[:16].rstrip(b"\\0").decode(): socket.inet_ntoa(row[20:24]) for row in rows}
index = socket.if_nametoindex("tailscale0") if hasattr(socket, "if_nametoindex") else 0
print(json.dumps({
    "addresses": addresses(),
    "entries": entries,
    "room": room == listed,
    "address": socket.inet_ntoa(ask(0x8915)[20:24]),
    "mask": socket.inet_ntoa(ask(0x891B)[20:24]),
    "flags": struct.unpack("H", ask(0x8913)[16:18])[0] & 0x41,
    "index": struct.unpack("i", ask(0x8933)[16:20])[0] == index,
    "link": struct.unpack("H", ask(0x8927)[16:18])[0],
    "name": socket.if_indextoname(index),
    "listed": (index, "tailscale0") in socket.if_nameindex(),
    "others": [libc.if_nametoindex(b"lo") == 1, libc.if_nametoindex(b"no-such")],
    "lo": socket.inet_ntoa(ask(0x8915, b"lo")[20:24]),
}))
"""


def test_there_is_an_interface_with_the_own_addresses(pod: Pod) -> None:
    found = python(pod, INTERFACES)
    assert found.pop("entries") == {"lo": "127.0.0.1", "eth0": f"10.79.{pod.number}.2", "tailscale0": pod.ipv4}
    assert found == {
        "addresses": [[pod.ipv4, 0x41, ""], [pod.ipv6, 0x41, ""]],
        "room": True,
        "address": pod.ipv4,
        "mask": "255.255.255.255",
        "flags": 0x41,
        "index": True,
        "link": 0xFFFE,
        "name": "tailscale0",
        "listed": True,
        "others": [True, 0],
        "lo": "127.0.0.1",
    }


NAMES = """
import ctypes, errno, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
data = ctypes.create_string_buffer(b"?" * 16, 16)
short = [libc.gethostname(data, 4), errno.errorcode.get(ctypes.get_errno()), data.raw[:5].decode()]
print(json.dumps([socket.gethostname(), os.uname().nodename, short]))
"""


def test_the_machine_has_the_name_that_the_agent_gave_it(pod: Pod) -> None:
    pod.path("/run/meshnet/hostname").write_text("a100-3\n")
    try:
        assert python(pod, NAMES) == ["a100-3", "a100-3", [-1, "ENAMETOOLONG", "a100?"]]
        assert python(pod, NAMES, before=("env", "MESHNET=off"))[0] == socket.gethostname()
    finally:
        pod.path("/run/meshnet/hostname").unlink()
    assert python(pod, NAMES)[0] == socket.gethostname()


def test_without_meshnet_a_program_runs_as_without_the_library(pod: Pod) -> None:
    bare = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$0" "$@"')
    interfaces = "import json, socket; print(json.dumps([name for _, name in socket.if_nameindex()]))"
    for before in ("env", "MESHNET=off"), bare:
        assert dial(pod, NOBODY, 9, 0.3, before=before) == "late"
        assert "tailscale0" not in python(pod, interfaces, before=before)
    assert "tailscale0" in python(pod, interfaces, before=("env", "MESHNET=on"))


def test_a_setuid_program_does_not_listen_to_the_switch(pod: Pod, other: Pod, echo: Server) -> None:
    program = pod.path("/run/meshnet-setuid-python")
    program.write_bytes(Path(PYTHON).resolve().read_bytes())
    program.chmod(0o4755)
    script = """
        mkdir /run/etc /run/upper /run/work && mount -t tmpfs tmpfs /run/etc && mkdir /run/etc/upper /run/etc/work
        mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc
        cp "$1" /run/libmeshnet.so && chmod 755 /run/libmeshnet.so && echo /run/libmeshnet.so > /etc/ld.so.preload
        shift
        exec setpriv --reuid=65534 --clear-groups env -u LD_PRELOAD MESHNET=off "$@"
    """
    words = ["unshare", "-m", "sh", "-euc", script, "sh", str(pod.lab.built / "libmeshnet.so")]
    code = "import os, sys; assert os.geteuid() == 0 != os.getuid()\n" + DIAL
    for path in "/run/etc", "/run/upper", "/run/work":
        assert not pod.path(path).exists()
    done = pod.run(*words, "/run/meshnet-setuid-python", "-c", code, other.ipv4, str(echo.port), "0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == [other.ipv4, echo.port]


def test_programs_without_standard_descriptors(pod: Pod, other: Pod, echo: Server) -> None:
    out = pod.folder / "closed"
    code = f"import os, sys; sys.stdout = open({str(out)!r}, 'w')\n" + DIAL
    words = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", PYTHON, "-c", code, other.ipv4, str(echo.port), "0"]
    assert pod.run(*words).returncode == 0
    assert json.loads(out.read_text())[0] == [other.ipv4, echo.port]


@pytest.fixture(scope="module")
def awkward(lab: MeshnetLab) -> str:
    program = lab.folder / "awkward"
    source = Path(__file__).with_name("awkward.c")
    words = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", str(program), str(source)]
    subprocess.run(words, check=True, timeout=60)
    return str(program)


@pytest.mark.parametrize("mode", ["handlers", "stacks", "vfork", "exec", "descriptors", "filter"])
def test_awkward_programs(pod: Pod, other: Pod, echo: Server, awkward: str, mode: str) -> None:
    done = pod.run("prlimit", "--nofile=256", awkward, mode, other.ipv4, str(echo.port))
    assert done.returncode == 0


def test_a_tailscaled_that_is_late_still_tells_who_a_peer_is(pod: Pod, other: Pod) -> None:
    """A busy one takes seconds. Were the peer taken for a local one, slurmd would answer to the wrong place."""
    code = """
        import json, socket, sys
        server = socket.create_server(("0.0.0.0", 0))
        print(json.dumps(server.getsockname()[1]), flush=True)
        sys.stdin.readline()
        kept, peer = server.accept()
        print(json.dumps([peer[0], kept.getpeername()[0]]), flush=True)
    """
    connect = """
        import socket, sys
        kept = socket.create_connection((sys.argv[1], int(sys.argv[2])))
        print(1, flush=True)
        sys.stdin.readline()
    """
    with Program(pod, code) as server:
        port = server.read()
        with Program(other, connect, pod.ipv4, port) as client:
            assert client.read() == 1
            with stopped(pod):
                server.go()
                time.sleep(2.5)
            assert server.read() == [other.ipv4, other.ipv4]


KILLED = """
import errno, json, select, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.makefile().readline()
pending = socket.socket()
pending.setblocking(False)
code = pending.connect_ex((sys.argv[3], 9)) if sys.argv[3] else 0
print(json.dumps(errno.errorcode.get(code, code)), flush=True)
try:
    end = len(s.recv(1))
except OSError as error:
    end = errno.errorcode[error.errno]
if code:
    select.select([], [pending], [], 60)
    code = pending.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
print(json.dumps([end, errno.errorcode.get(code, code)]), flush=True)
"""


def test_tailscaled_killed_and_back(pod: Pod, other: Pod, vm: Vm, echo: Server) -> None:
    with stopped(vm), Program(pod, KILLED, other.ipv4, echo.port, vm.ipv4) as program:
        assert program.read() == "EINPROGRESS"
        time.sleep(0.2)  # the pending one is with tailscaled by then
        began = time.monotonic()
        pod.kill("tailscaled")
        assert program.read() == ["ECONNRESET", "ENETDOWN"]
        assert time.monotonic() - began < 4
        assert dial(pod, other.ipv4, echo.port) == "ENETDOWN"
        assert dial(pod, other.ipv4, echo.port, 30) == "ENETDOWN"
    pod.start_tailscaled()
    wait_until(lambda: dial(pod, other.ipv4, echo.port)[0] == [other.ipv4, echo.port], "tailscaled is back")


def test_meshnetd_killed_and_back(pod: Pod, other: Pod, vm: Vm, echo: Server) -> None:
    with stopped(vm), Program(pod, KILLED, other.ipv4, echo.port, vm.ipv4) as program:
        assert program.read() == "EINPROGRESS"
        pod.kill("meshnetd")
        assert dial(pod, other.ipv4, echo.port) == "ENETDOWN"
        pod.start_meshnetd()
        assert program.read() == ["ECONNRESET", "ECONNRESET"]
    assert dial(pod, other.ipv4, echo.port)[0] == [other.ipv4, echo.port]


def test_meshnetd_that_hangs_holds_nobody_up_for_long(pod: Pod, other: Pod, echo: Server) -> None:
    with stopped(pod, "meshnetd"):
        began = time.monotonic()
        assert dial(pod, other.ipv4, echo.port, 30) == "ENETDOWN"
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("mode", ["poll", "dialled"])
def test_kernels_that_do_not_hold_or_end_connects(pod: Pod, other: Pod, vm: Vm, echo: Server, mode: str) -> None:
    pod.kill("meshnetd", signal.SIGTERM)
    pod.start_meshnetd("--wait", mode)
    try:
        for timeout_s in 0, 30:
            seen = [pod.ipv4, pod.ipv4, other.ipv4]
            assert dial(pod, other.ipv4, echo.port, timeout_s) == [[other.ipv4, echo.port], pod.ipv4, seen]
            assert dial(pod, other.ipv4, 9, timeout_s) == "ECONNREFUSED"
            assert dial(pod, NOBODY, 9, timeout_s) == "EHOSTUNREACH"
    finally:
        pod.kill("meshnetd", signal.SIGTERM)
        pod.start_meshnetd()


def test_what_local_programs_send_to_meshnetd_does_no_harm(pod: Pod, other: Pod, echo: Server) -> None:
    where = str(pod.path("/run/meshnet/meshnetd.sock"))
    before = descriptors(pod)

    def connected() -> socket.socket:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(10)
        s.connect(where)
        return s

    address = struct.Struct("=BBH16s")
    to = address.pack(4, 0, socket.htons(9), socket.inet_aton(other.ipv4))
    outside = address.pack(4, 0, socket.htons(9), socket.inet_aton("8.8.8.8"))

    def request(kind: int, first: bytes, second: bytes, magic: int = 0x4D4E3031) -> bytes:
        return struct.pack("=IIQ", magic, kind, 7) + first + second

    for data in b"x", bytes(4096), request(1, to, to, magic=1), request(9, to, to), request(1, to, to)[:-1]:
        with connected() as s:
            s.send(data)
            assert len(s.recv(100)) in (0, 52)
    with ExitStack() as stack:
        keep = stack.enter_context
        listening = keep(socket.create_server(("127.0.0.1", 0)))
        unix = [keep(s) for s in socket.socketpair()]
        null = stack.enter_context(Path(os.devnull).open("rb"))
        for passed, target in (
            (listening, to),
            (keep(socket.create_connection(listening.getsockname())), to),
            (keep(socket.socket(type=socket.SOCK_DGRAM)), to),
            (unix[0], to),
            (null, to),
            (keep(socket.socket()), outside),
        ):
            with connected() as s:
                socket.send_fds(s, [request(1, target, target)], [passed.fileno()] * 5)
                assert struct.unpack_from("=Ii", s.recv(100))[1] != 0
    # Many that say nothing: those of another user have their place.
    silent = [connected() for _ in range(1100)]
    asked = dial(pod, other.ipv4, echo.port, before=("setpriv", "--reuid=65534", "--clear-groups"))
    assert asked[0] == [other.ipv4, echo.port]
    for s in silent:
        s.close()
    assert dial(pod, other.ipv4, echo.port)[0] == [other.ipv4, echo.port]
    wait_until(lambda: descriptors(pod) <= before + 128, "meshnetd has closed what it got")


def test_meshnetd_without_free_descriptors_refuses_and_goes_on(pod: Pod, other: Pod, echo: Server) -> None:
    code = """
        import errno, json, socket, sys
        kept, errors = [], set()
        for _ in range(60):
            s = socket.socket()
            code = s.connect_ex((sys.argv[1], int(sys.argv[2])))
            kept.append(s) if code == 0 else errors.add(errno.errorcode[code])
        print(json.dumps([len(kept), sorted(errors)]))
    """
    limits = resource.prlimit(pod.pid("meshnetd"), resource.RLIMIT_NOFILE)
    resource.prlimit(pod.pid("meshnetd"), resource.RLIMIT_NOFILE, (40, limits[1]))
    written = len(pod.log("meshnetd"))
    try:
        connected, errors = python(pod, code, other.ipv4, echo.port)
        assert 5 < connected < 20
        assert errors in (["ENOBUFS"], ["ENETDOWN"], ["ENETDOWN", "ENOBUFS"])
        assert dial(pod, other.ipv4, echo.port)[0] == [other.ipv4, echo.port]
    finally:
        resource.prlimit(pod.pid("meshnetd"), resource.RLIMIT_NOFILE, limits)
    assert pod.log("meshnetd")[written:].count("\n") < 50


def test_a_second_meshnetd_leaves_the_first_alone(pod: Pod, other: Pod, echo: Server) -> None:
    assert pod.run(str(pod.lab.built / "meshnetd")).returncode == 1
    assert dial(pod, other.ipv4, echo.port)[0] == [other.ipv4, echo.port]


STRANGER = """
import json, socket
with socket.create_server(("127.0.0.1", 1055)) as server:
    print(json.dumps("listens"), flush=True)
    peer = server.accept()[0]
    peer.settimeout(30)
    peer.recv(3)
    peer.sendall(b"\\5\\0")
    peer.recv(10)
    peer.sendall(b"\\5\\0\\0\\1" + bytes(6))
    print(json.dumps(peer.recv(1000).decode()), flush=True)
"""
"""A user's program that takes the place of tailscaled's proxy, and says what it is told."""


def test_a_stranger_on_the_proxys_port_is_told_nothing(pod: Pod, other: Pod, echo: Server) -> None:
    ours = ("setpriv", "--reuid=65534", "--clear-groups", PYTHON, "-c", STRANGER)
    pod.kill("tailscaled")
    stranger = pod.spawn(*ours)
    try:
        assert stranger.stdout is not None
        assert json.loads(stranger.stdout.readline()) == "listens"
        Machine.start_tailscaled(pod, "--tun=userspace-networking")  # all of it but the proxy
        wait_until(lambda: pod.knows(other.ipv4), "tailscaled knows its peers again")
        code = """
            import errno, json, socket, sys, time
            s = socket.socket()
            code = s.connect_ex((sys.argv[1], int(sys.argv[2])))
            print(json.dumps(errno.errorcode.get(code, code)))
        """
        assert python(pod, code, other.ipv4, echo.port) == "ENETDOWN"
        assert json.loads(stranger.stdout.readline()) == ""
    finally:
        stranger.kill()
        stranger.communicate()
        pod.kill("tailscaled")
        pod.start_tailscaled()
        wait_until(lambda: dial(pod, other.ipv4, echo.port)[0] == [other.ipv4, echo.port], "tailscaled is back")


HOSTILE = """
import json, socket, struct, sys
from contextlib import suppress
listening = socket.create_server(("127.0.0.1", 0), backlog=64)
kept = []

def slow_to_close():
    near = socket.create_connection(listening.getsockname())
    kept.append(listening.accept()[0])
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    near.setblocking(False)
    try:
        while True:
            near.send(bytes(65536))
    except BlockingIOError:
        return near

def connected():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(10)
    s.connect("/run/meshnet/meshnetd.sock")
    return s

address = struct.Struct("=BBH16s")
request = struct.pack("=IIQ", 0x4D4E3031, 1, 7) + bytes(20) + address.pack(4, 0, 9, socket.inet_aton(sys.argv[1]))
for ask in (
    lambda s, fd: socket.send_fds(s, [request], [fd]),               # no socket to connect
    lambda s, fd: socket.send_fds(s, [request], [0] * 252 + [fd]),   # one of many
    lambda s, fd: socket.send_fds(s, [b"x"], [fd]),                  # no request
    lambda s, fd: [socket.send_fds(s, [b""], [fd]) for _ in "two"],  # the second is not read
):
    passed = slow_to_close()
    with connected() as s, suppress(OSError):  # it may have ended the connection before the second
        ask(s, passed.fileno())
        passed.close()
        s.recv(100)
    passed.close()
# Within the queue of a descriptor.
one, two = socket.socketpair()
passed = slow_to_close()
socket.send_fds(one, [b"x"], [passed.fileno()])
passed.close()
with connected() as s:
    socket.send_fds(s, [request], [two.fileno()])
    two.close()
    one.close()
    s.recv(100)
print(json.dumps("passed"), flush=True)
sys.stdin.readline()
"""


def test_descriptors_that_are_slow_to_close_hold_nobody_up(pod: Pod, other: Pod, echo: Server) -> None:
    before = descriptors(pod)
    with Program(pod, HOSTILE, other.ipv4) as hostile:
        assert hostile.read() == "passed"
        began = time.monotonic()
        assert dial(pod, other.ipv4, echo.port)[0] == [other.ipv4, echo.port]
        assert time.monotonic() - began < 5
        wait_until(lambda: descriptors(pod) <= before + 128, "meshnetd has closed what it got")


PENDING = """
import errno, json, socket, sys
kept, errors = [], {}
for _ in range(1100):
    s = socket.socket()
    s.setblocking(False)
    code = s.connect_ex((sys.argv[1], 9))
    kept.append(s)
    errors[errno.errorcode[code]] = errors.get(errno.errorcode[code], 0) + 1
print(json.dumps(errors), flush=True)
sys.stdin.readline()
"""


def test_one_user_cannot_take_all_places(pod: Pod, other: Pod, vm: Vm, echo: Server) -> None:
    """vm does not answer: each connect to it takes a place for 5 s."""
    words = ("prlimit", "--nofile=4096", "setpriv", "--clear-groups")
    with stopped(vm), ExitStack() as stack:
        for uid in 65533, 65534:
            hostile = pod.spawn(*words, f"--reuid={uid}", PYTHON, "-c", PENDING, vm.ipv4)
            stack.callback(hostile.communicate)
            stack.callback(hostile.kill)
            assert hostile.stdout is not None
            taken = json.loads(hostile.stdout.readline())
            assert taken["EINPROGRESS"] > 500
        assert dial(pod, other.ipv4, echo.port)[0] == [other.ipv4, echo.port]
