"""The remote shell of `meshctl push` and `pull`: rsync starts it in place of ssh.

srun starts rsync's other half on the node, as the caller, who needs no key and no ssh server there. The data do not go
through srun, whose messages hold 1 KiB each: the node connects back to this program, as slurmstepd does to srun, to a
port in SrunPortRange. What connects must first send a secret that went to the node through srun. It is plain TCP,
which the tailnet encrypts.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

SRUN = "MESHCTL_SRUN"
"""The variable with srun's command line, as a shell's words."""
PORTS = "MESHCTL_PORTS"
"""The variable with the ports to listen at: `60001-63000`; "0-0" for any."""

SECRET_B = 32
CONNECT_S = 60.0
"""From the start of the step to its connection."""
SECRET_S = 5.0
LAST_BYTES_S = 30.0
"""After the end of the step, for what is still on its way."""
CHUNK_B = 256 * 1024
PORT_TRIES = 50
NO_RSYNC = 127

ON_NODE = """\
import os, socket, sys
secret = b""
while len(secret) < 32:
    got = os.read(0, 32 - len(secret))
    if not got: sys.exit("meshctl: srun passed no secret on")
    secret += got
there = socket.create_connection((os.environ["SLURM_LAUNCH_NODE_IPADDR"], int(sys.argv[1])), 30)
there.settimeout(None)
there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
there.sendall(secret)
os.dup2(there.fileno(), 0)
os.dup2(there.fileno(), 1)
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError: os._exit(127)
"""
"""What the step runs: it needs only Python's standard library, which each node has for its agent."""


def main() -> int:
    """The command line: HOST rsync --server ...; returns the exit code of rsync's other half."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host, *words = sys.argv[1:]
    with _listen(os.environ.get(PORTS, "0-0")) as listener:
        secret = secrets.token_bytes(SECRET_B)
        argv = [*shlex.split(os.environ[SRUN]), f"--nodelist={host}", "python3", "-c", ON_NODE]
        step = subprocess.Popen(
            [*argv, str(listener.getsockname()[1]), *words], stdin=subprocess.PIPE, stdout=sys.stderr.fileno(),
            process_group=0,  # Ctrl-C ends rsync: then the other half ends by itself
        )  # fmt: skip
        assert step.stdin
        with suppress(BrokenPipeError):  # srun has ended, and has said why
            step.stdin.write(secret)
            step.stdin.close()
        found = _accept(listener, step, secret)
    if found is None:
        step.terminate()
        code = step.wait()
        if code != NO_RSYNC and code != 0:
            sys.stderr.write(f"meshctl: rsync did not start on {host}\n")
        return code or 1
    with found:
        _pass_on(found, step)
    code = step.wait()
    if code == NO_RSYNC:
        sys.stderr.write(f"meshctl: {host} has no rsync\n")
    return code if code >= 0 else 128 - code


def _listen(ports: str) -> socket.socket:
    """A socket that listens at a free port of the range. Raises OSError."""
    low, _, high = ports.partition("-")
    error = OSError(f"no port of {ports} is free")
    for port in _tries(int(low), int(high or low)):
        try:
            return socket.create_server(("", port), backlog=8)
        except OSError as why:
            error = why
    raise error


def _tries(low: int, high: int) -> Iterator[int]:
    for _ in range(PORT_TRIES):
        yield low + secrets.randbelow(high - low + 1)


def _accept(listener: socket.socket, step: subprocess.Popen[bytes], secret: bytes) -> socket.socket | None:
    """The connection that has the secret; None where the step or rsync ends before, or it takes too long."""
    end = time.monotonic() + CONNECT_S
    rsync = select.poll()
    rsync.register(1, 0)  # says only whether the other end is closed
    while time.monotonic() < end and not rsync.poll(0):
        if select.select([listener], [], [], 0.2)[0]:
            found, _ = listener.accept()
            if _has_secret(found, secret):
                return found
            found.close()
        elif step.poll() is not None:
            return None
    return None


def _has_secret(found: socket.socket, secret: bytes) -> bool:
    end, got = time.monotonic() + SECRET_S, b""  # for all of it: others wait meanwhile
    try:
        while len(got) < SECRET_B:
            found.settimeout(max(end - time.monotonic(), 0.01))
            part = found.recv(SECRET_B - len(got))
            if not part:
                return False
            got += part
    except OSError:
        return False
    found.settimeout(None)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return hmac.compare_digest(got, secret)


def _pass_on(there: socket.socket, step: subprocess.Popen[bytes]) -> None:
    """Between rsync, on standard input and output, and its other half; returns when that has ended."""
    for stream in (0, 1):
        os.set_blocking(stream, True)  # rsync makes both ends non-blocking
    threading.Thread(target=_send, args=(there,), daemon=True).start()
    threading.Thread(target=_watch, args=(there, step), daemon=True).start()
    try:
        while data := there.recv(CHUNK_B):
            _write(data)
    except OSError:
        step.terminate()  # rsync is gone, or the connection
    os.close(1)


def _send(there: socket.socket) -> None:
    with suppress(OSError):  # the other half has ended: its exit code tells
        while data := os.read(0, CHUNK_B):
            there.sendall(data)
        there.shutdown(socket.SHUT_WR)


def _watch(there: socket.socket, step: subprocess.Popen[bytes]) -> None:
    """A node that is lost sends no end: srun learns it from slurmctld."""
    step.wait()
    time.sleep(LAST_BYTES_S)
    with suppress(OSError):  # it is closed
        there.shutdown(socket.SHUT_RDWR)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    raise SystemExit(main())
