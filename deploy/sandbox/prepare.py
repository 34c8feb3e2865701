"""Builds and caches everything that a sandbox needs: `python -m deploy.sandbox.prepare [--only PART...]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from deploy.sandbox import gotools, images
from deploy.sandbox.proc import CommandError
from deploy.sandbox.progress import say

_PARTS: dict[str, Callable[[], Awaitable[object]]] = {
    "trixie": lambda: images.ensure_image("trixie"),
    "bookworm": lambda: images.ensure_image("bookworm"),
    "head": lambda: images.ensure_head_image(images.PYPROJECT),
    "tailscale": gotools.ensure_tailscale,
    "control": gotools.ensure_control,
}


async def prepare(parts: list[str]) -> None:
    """Build what is missing of the named parts: images in one line, Go programs in another, side by side.

    Raises:
        CommandError: a build failed; what was complete before stays in the cache.
    """

    async def in_turn(names: tuple[str, ...]) -> None:
        for name in names:
            if name in parts:
                await _PARTS[name]()

    try:
        async with asyncio.TaskGroup() as group:
            # Fetching and unpacking wait for network and disk, compiling for the processor: together they take as long
            # as the longer one.
            group.create_task(in_turn(("trixie", "head", "bookworm")))
            group.create_task(in_turn(("tailscale", "control")))
    except* CommandError as errors:
        raise errors.exceptions[0] from None


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build and cache what a sandbox needs.")
    parser.add_argument(
        "--only", nargs="+", choices=sorted(_PARTS), default=sorted(_PARTS), help="build only these parts"
    )
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("prepare: building machine images needs root", file=sys.stderr)
        return 1
    try:
        asyncio.run(prepare(options.only))
    except CommandError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare: interrupted; the next run goes on from what was complete", file=sys.stderr)
        return 130
    say("everything is prepared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
