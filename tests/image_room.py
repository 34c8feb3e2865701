"""The parts that look after images, for tests of other rooms and their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshd.daemon.images.controller import ImageController
from meshd.daemon.images.service import ImageService
from meshd.daemon.images.wiring import ImageParts
from meshd.daemon.machine_store import MachineStore
from meshd.model.desired import Desired
from meshd.model.freeze import Freeze
from meshd.model.observed import Snapshot
from meshd.store.bakes import Bakes

SCRIPT = "#!/bin/sh\n"
PARTS = "0123456789abcdef"


def image_parts(
    store: MachineStore,
    providers: Mapping[str, Any],
    desired: Callable[[], Desired],
    snapshot: Callable[[], Snapshot],
    bakes: Bakes | None = None,
    freeze: Callable[[], Freeze | None] = lambda: None,
) -> ImageParts:
    """The parts around these."""
    bakes = bakes or Bakes(store.journal)
    controller = ImageController("lab", bakes, store, providers, freeze)
    service = ImageService(
        bakes, store, controller, providers, desired=desired, snapshot=snapshot,
        script=lambda: (SCRIPT, PARTS), slurm_version=lambda: "24.11.5",
    )  # fmt: skip
    return ImageParts(controller, service)
