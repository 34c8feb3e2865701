"""Credentials made and checked by munged, through the munge and unmunge programs."""

from __future__ import annotations

import asyncio
import re

from meshd.errors import CommandNotFound, CommandTimeout, MungeError
from meshd.runtime.run import Result, Runner, run

CREDENTIAL_MAX_CHARS = 8192
AT_ONCE = 8
"""Programs that run at the same time: when all nodes prove munge at one moment, each still has its whole time."""
_CREDENTIAL = re.compile(r"^MUNGE:[A-Za-z0-9+/=:]+:$")
_STATUS = {
    14: "the credential is invalid: the two sides do not have the same munge key "
    "(after a change of the head's key: systemctl restart munge meshd there)",
    15: "the credential is expired: it was made over 300 s ago by our clock: the clocks differ (NTP)",
    16: "the credential is rewound: it comes from over 300 s in our future, so the clocks differ (NTP)",
    17: "the credential is replayed: it was already used here",
    18: "the credential is not for this user",
}


class MungeClient:
    """The head's munged.

    Args:
        runner: runs programs.
        timeout_s: for one call.
    """

    def __init__(self, runner: Runner = run, timeout_s: float = 10.0) -> None:
        self._run = runner
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(AT_ONCE)

    async def encode(self) -> str:
        """A new credential without payload.

        Raises:
            MungeError: munged does not run, its key is insecure or missing, or munge is not installed.
        """
        result = await self._call(["munge", "-n"], b"")
        if result.returncode != 0:
            raise MungeError(_failure("munge", result))
        return result.stdout.strip()

    async def decode(self, credential: str) -> None:
        """Check a credential that another machine made.

        Raises:
            MungeError: with a different text for each kind: wrong key, expired, rewound, replayed, no munged.
        """
        if len(credential) > CREDENTIAL_MAX_CHARS or not _CREDENTIAL.match(credential):
            raise MungeError("what was sent is no munge credential")
        result = await self._call(["unmunge", "-n"], credential.encode())
        if result.returncode != 0:
            raise MungeError(_failure("unmunge", result))

    async def exchange(self, credential: str) -> str:
        """Check theirs and answer with one of ours: the head's half of the proof.

        Raises:
            MungeError: as `decode` and `encode`.
        """
        await self.decode(credential)
        return await self.encode()

    async def _call(self, argv: list[str], stdin: bytes) -> Result:
        try:
            async with self._free:
                return await self._run(argv, timeout_s=self._timeout_s, stdin=stdin, check=False)
        except CommandNotFound as error:
            raise MungeError(f"{error} (install munge)") from error
        except CommandTimeout as error:
            raise MungeError(f"munged does not answer: {error}") from error


def _failure(program: str, result: Result) -> str:
    """The kind of failure by unmunge's exit code, and by munged's words where the code is common to several."""
    if program == "unmunge" and result.returncode in _STATUS:
        return _STATUS[result.returncode]
    text = (result.stderr or result.stdout).strip()
    lower = text.lower()
    if "insecure" in lower:
        return f"munged refuses its key: it is insecure (chmod 0400 and give it to munge): {text[-200:]}"
    if "socket" in lower or "connect" in lower:
        return f"munged does not run or its socket is missing (systemctl status munge): {text[-200:]}"
    return f"{program} failed with {result.returncode}: {text[-200:] or 'no message'}"
