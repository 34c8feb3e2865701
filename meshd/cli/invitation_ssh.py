"""Runs the script of an invitation on its machine over ssh, with the caller's own keys and known hosts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from meshd.api.schema import InviteAnswer
from meshd.cli.fanout import Ended, Fanout
from meshd.cli.session import say
from meshd.cli.ssh import ssh_program

AT_ONCE: Final = 16
TIMEOUT_S: Final = 1800.0
"""For a whole script, which may install packages."""
LINES: Final = 20
REMOTE: Final = '[ "$(id -u)" = 0 ] && exec sh -s; exec sudo -n sh -s'
OPTIONS: Final = {"BatchMode": "yes", "ConnectTimeout": "15", "ServerAliveInterval": "15"}
"""No question is asked, and a machine that hangs is noticed within a minute, before its login and after it."""
SSH_FAILED: Final = 255

_CURES: Final = (
    ("host key verification failed", "run `ssh {to}` once, compare the fingerprint that it shows, and invite it again"),
    ("permission denied", "`ssh {to}` must come in without a password: `ssh-copy-id {to}` puts your key there"),
    ("could not resolve", "no such host is known here: write its address"),
    ("refused|no route|unreachable|timed out|timeout|closed by|reset by", "is it on, and does its ssh server answer?"),
)


async def visit(visits: Sequence[tuple[InviteAnswer, str]]) -> list[Ended]:
    """Run each script on its machine, and say how it went. It is the input of a shell: no secret is an argument.

    Args:
        visits: the invitations, each with USER@HOST.
    """
    limit = asyncio.Semaphore(AT_ONCE)
    program = ssh_program()

    async def one(answer: InviteAnswer, to: str) -> Ended:
        options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
        async with limit:
            argv = [program, "-T", *options, "--", to, REMOTE]
            ended = await Fanout(1, TIMEOUT_S).feed(answer.name, argv, answer.script.encode())
        lines = ended.output.decode("utf-8", "replace").splitlines()[-LINES:]
        for line in (*lines, *cures(ended, lines, to)):
            say(f"{answer.name}: {line}")
        return ended

    return list(await asyncio.gather(*(one(answer, to) for answer, to in visits)))


def cures(ended: Ended, lines: Sequence[str], to: str) -> list[str]:
    """What to do when it failed before the script began; [] when it began, for then the script says it.

    Args:
        ended: how ssh ended.
        lines: what was printed last.
        to: USER@HOST.
    """
    said = "\n".join(lines).lower()
    if ended.timed_out:
        return [f"it has not ended within {TIMEOUT_S / 60:.0f} min: look there, then invite it again"]
    if ended.code == SSH_FAILED:
        return [cure.format(to=to) for pattern, cure in _CURES if re.search(pattern, said)][:1]
    if ended.code != 0 and "sudo: " in said:
        return [f"let that account use sudo without a password, or name root@{to.rpartition('@')[2]}"]
    return []
