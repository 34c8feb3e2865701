"""Prints where a user finds one of the secrets on standard input, one a line: in any file, environment or command line.

Base64 hides nothing: what is encoded is searched too.
"""

from __future__ import annotations

import base64
import os
import re
import stat
import sys
from collections.abc import Iterator

PLACES = ("/dev/shm", "/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/usr/lib/meshd", "/var")
LARGEST_BYTES = 4 << 20
ENCODED = re.compile(rb"[A-Za-z0-9+/]{24,}={0,2}")


def files() -> Iterator[str]:
    """The files that may hold secrets."""
    yield from (
        f"/proc/{pid}/{name}" for pid in os.listdir("/proc") if pid.isdigit() for name in ("cmdline", "environ")
    )
    for place in PLACES:
        for folder, _, names in os.walk(place):
            yield from (os.path.join(folder, name) for name in names)


def content(path: str) -> bytes:
    """What a file holds, and what is base64 in it, as this user reads it."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            data = file.read(LARGEST_BYTES)
    except OSError:
        return b""
    decoded = []
    for match in ENCODED.findall(data):
        word = match.rstrip(b"=")
        decoded += [base64.b64decode(word[at : at + (len(word) - at) // 4 * 4]) for at in range(4)]
    return b"\n".join([data, *decoded])


def main() -> None:
    """Search."""
    wanted = [line.strip().encode() for line in sys.stdin if line.strip()]
    for path in files():
        data = content(path)
        if any(secret in data for secret in wanted):
            print(path)


if __name__ == "__main__":
    main()
