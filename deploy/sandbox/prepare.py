"""Builds and caches everything that a sandbox needs: `python -m deploy.sandbox.prepare [--only PART...]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

from deploy.sandbox import gotools, images
from deploy.sandbox.proc import CommandError
from deploy.sandbox.progress import say

_TORCH = f"trixie{images.TORCH}"
_POD = f"trixie{images.POD}"
_STOCK = f"trixie{images.STOCK}{images.POD}"
_PLAIN = f"trixie{images.PLAIN}"
_UML = (f"trixie{images.UML}", f"head{images.UML}") if images.has_uml() else ()
_IMAGES = (*images.SUITES, _TORCH, _POD, _STOCK, _PLAIN, *_UML)
_PARTS = (*_IMAGES, images.HEAD, images.HEAD_MLFLOW, "tailscale", "control")


_LAYERS: Mapping[str, Sequence[Callable[[], Awaitable[Path]]]] = {
    images.HEAD: (
        lambda: images.ensure_head_layer(images.PYPROJECT),
        lambda: images.ensure_services_layer("trixie"),
    ),
    images.HEAD_MLFLOW: (images.ensure_mlflow_layer, images.ensure_wheels_layer),
    _TORCH: (lambda: images.ensure_torch_layer("trixie"),),
    _POD: (lambda: images.ensure_s6_layer("trixie"),),
    _STOCK: (lambda: images.ensure_stock("trixie"),),
    _PLAIN: (lambda: images.ensure_plain("trixie"),),
}
"""The layers of a part that take long, in their order; each above the base of its suite."""


async def prepare(parts: Collection[str]) -> None:
    """Build what is missing of the named parts, and what they are made of.

    Raises:
        CommandError: a build failed; what was complete before stays in the cache.
    """
    wanted = [name for name in _IMAGES if name in parts]
    on_trixie = {images.HEAD, images.HEAD_MLFLOW, _TORCH, _POD} & set(parts)
    suites = [suite for suite in images.SUITES if suite in parts or (on_trixie and suite == "trixie")]

    async def build_images() -> None:
        for suite in suites:
            await images.ensure_base(suite)
        for part, layers in _LAYERS.items():
            for layer in layers if part in parts else ():
                await layer()

    async def build_programs() -> None:
        if suites or "tailscale" in parts:
            await gotools.ensure_tailscale()
        if "control" in parts:
            await gotools.ensure_control()

    try:
        async with asyncio.TaskGroup() as group:
            # Fetching and unpacking wait for network and disk, compiling for the processor: together they take as long
            # as the longer one.
            group.create_task(build_images())
            group.create_task(build_programs())
    except* CommandError as errors:
        raise errors.exceptions[0] from None
    for name in wanted:
        await images.image_by_name(name)


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build and cache what a sandbox needs.")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, help="build only these parts")
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
