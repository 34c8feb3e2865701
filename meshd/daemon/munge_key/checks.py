"""Whether the head's munged works."""

from __future__ import annotations

from meshd.api.schema import CheckRow
from meshd.codes import CheckName
from meshd.daemon.reporting import ok
from meshd.munge.client import MungeClient


async def round_trip(munge: MungeClient) -> CheckRow:
    """The head encodes a credential and decodes it again. Raises MungeError when it cannot."""
    await munge.exchange(await munge.encode())
    return ok(CheckName.MUNGE, "encodes and decodes")
