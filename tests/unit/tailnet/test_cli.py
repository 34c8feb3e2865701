from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from meshd.errors import CommandError, CommandNotFound, CommandTimeout, MeshdError, TailnetError
from meshd.runtime.run import Result
from meshd.tailnet.cli import TailscaleCli, operator_hint

SOCKET = Path("/run/tailscale/tailscaled.sock")


class Program:
    """Stands for the tailscale program."""

    def __init__(self, answer: str | MeshdError) -> None:
        self.answer = answer
        self.calls: list[list[str]] = []

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        assert timeout_s > 0
        self.calls.append(list(argv))
        if isinstance(self.answer, MeshdError):
            raise self.answer
        return Result(tuple(argv), 0, self.answer, "")


async def test_the_questions(recording: Callable[[str], str]) -> None:
    program = Program(recording("direct.json"))
    cli = TailscaleCli(program, SOCKET)
    assert (await cli.status()).healthy
    program.answer = recording("whois.json")
    assert (await cli.whois("100.64.0.2:22")).hostname == "gpu-b"
    program.answer = "100.64.0.1\n"
    assert await cli.ip4() == "100.64.0.1"
    program.answer = "1.102.5-ERR-BuildInfo\n  long version: 1.102.5\n"
    assert await cli.version() == "1.102.5"
    assert program.calls == [
        ["tailscale", f"--socket={SOCKET}", *rest]
        for rest in (
            ["status", "--json"],
            ["whois", "--json", "100.64.0.2:22"],
            ["ip", "-4"],
            ["version"],
        )
    ]


@pytest.mark.parametrize(
    ("fault", "cure"),
    [
        (CommandNotFound("tailscale"), "not installed"),
        (CommandTimeout(["tailscale"], 10), "within 10 s"),
        (
            CommandError(["tailscale"], 1, "failed to connect to local tailscaled; it doesn't appear to be running"),
            "systemctl start",
        ),
        (CommandError(["tailscale"], 1, "Access denied: checkprefs access denied"), operator_hint("USER")),
        (CommandError(["tailscale"], 1, "peer not found"), "no such device"),
        (CommandError(["tailscale"], 1, "something else"), "something else"),
    ],
)
async def test_every_fault_says_what_to_do(fault: MeshdError, cure: str) -> None:
    with pytest.raises(TailnetError, match=cure):
        await TailscaleCli(Program(fault), SOCKET).whois("100.64.0.9")


async def test_no_address_and_no_version_are_errors() -> None:
    for text in ("", "no current Tailscale IPs; state: NeedsLogin"):
        with pytest.raises(TailnetError):
            await TailscaleCli(Program(text), SOCKET).ip4()
        with pytest.raises(TailnetError):
            await TailscaleCli(Program(text), SOCKET).version()
