"""Runs ip(8) for the sandbox's network namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from deploy.sandbox import proc

_TIMEOUT_S = 20.0


async def ip(words: Sequence[str], *, check: bool = True) -> None:
    """Run `ip` once.

    Raises:
        CommandError: it failed, and `check` is set.
    """
    await proc.run(["ip", *words], timeout_s=_TIMEOUT_S, check=check)


async def batch(namespace: str, lines: Sequence[str]) -> None:
    """Run `ip` with many lines at once inside a named namespace.

    Raises:
        CommandError: a line failed; those before it have had their effect.
    """
    text = "".join(f"{line}\n" for line in lines)
    await proc.run(["ip", "-n", namespace, "-batch", "-"], timeout_s=_TIMEOUT_S, stdin=text.encode())
