"""Builds the parts that look after images."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshd.bootstrap.assets import bake_template
from meshd.bootstrap.bake import BakeScript, parts_of, render
from meshd.daemon.images.controller import ImageController
from meshd.daemon.images.service import ImageService
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.observe.source import Observed
from meshd.errors import MungeError
from meshd.model.desired import Desired
from meshd.model.observed import SlurmView, Snapshot, value_of
from meshd.provider_api import Provider
from meshd.store.bakes import Bakes


@dataclass(frozen=True, slots=True)
class ImageParts:
    """The parts.

    Attributes:
        controller: makes images.
        service: answers people.
    """

    controller: ImageController
    service: ImageService


def bake_script(live: LiveSettings) -> tuple[str, str]:
    """The script of the machines of images, and its digest: with the packages of all pools.

    Raises:
        MungeError: the head has no user munge.
    """
    settings, slurm = live.settings, pwd.getpwuid(os.getuid())
    try:
        munge = pwd.getpwnam("munge")
    except KeyError:
        raise MungeError("the head has no user munge: apt-get install munge") from None
    of_pools = tuple(sorted({name for pool in settings.pools.values() for name in pool.packages}))
    script = BakeScript(settings.node_api.packages, of_pools, slurm.pw_uid, slurm.pw_gid, munge.pw_uid, munge.pw_gid)
    text = render(script, bake_template())
    return text, parts_of(text)


def build(
    live: LiveSettings,
    store: MachineStore,
    bakes: Bakes,
    controller: ImageController,
    providers: Mapping[str, Provider],
    *,
    desired: Callable[[], Desired],
    snapshot: Callable[[], Snapshot],
    slurm: Observed[SlurmView],
) -> ImageParts:
    """Build the parts. For the arguments see ImageService."""

    def slurm_version() -> str:
        view = value_of(slurm.current)
        return view.version if view is not None else ""

    service = ImageService(
        bakes, store, controller, providers, desired=desired, snapshot=snapshot,
        script=lambda: bake_script(live), slurm_version=slurm_version,
    )  # fmt: skip
    return ImageParts(controller, service)
