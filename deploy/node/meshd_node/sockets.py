"""Who is at the other end of a TCP connection within this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

TABLE = Path("/proc/net/tcp")
LOCAL, REMOTE, UID, INODE = 1, 2, 7, 9
"""Columns, by the kernel's Documentation/networking/proc_net_tcp.rst."""


def other_end_uid(connection: socket.socket) -> int | None:
    """The user of the process that has the other end of an IPv4 connection over loopback.

    Returns:
        None where no process has it: it was closed, or is not accepted yet.

    Raises:
        OSError: the kernel's table cannot be read.
    """
    return uid_in(TABLE.read_text("ascii"), os.fstat(connection.fileno()).st_ino)


def uid_in(table: str, inode: int) -> int | None:
    """PURE: the same by the text of /proc/net/tcp and the inode of this end's socket."""
    rows = [line.split() for line in table.splitlines()[1:]]
    rows = [row for row in rows if len(row) > INODE]
    for mine in rows:
        if mine[INODE] == str(inode):
            ends = (mine[REMOTE], mine[LOCAL])
            # inode 0: without a process the kernel shows the user 0
            return next(
                (int(row[UID]) for row in rows if (row[LOCAL], row[REMOTE]) == ends and row[INODE] != "0"), None
            )
    return None
