"""The layer that makes an image a pod's: what the Dockerfile of deploy/container copies and builds."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from deploy.node.meshd_node.pod import BUILT
from deploy.sandbox import cache, proc, trees

_CONTAINER = Path(__file__).resolve().parents[1] / "container"
FILES = "usr/lib/meshd/pod"
COPIED = {"entrypoint", "has-tun", "log", "service", "stop"}
"""Files and directories of deploy/container that its Dockerfile copies to `FILES`."""

HIDDEN = (
    *("etc/cloud", "etc/systemd", "usr/lib/systemd", "usr/bin/cloud-init", "usr/bin/dbus-daemon"),
    *("usr/bin/journalctl", "usr/bin/loginctl", "usr/bin/systemctl", "usr/bin/systemd-run", "usr/bin/systemd-tmpfiles"),
    *("usr/sbin/halt", "usr/sbin/init", "usr/sbin/poweroff", "usr/sbin/reboot", "usr/sbin/shutdown"),
    *("usr/sbin/slurmctld", "var/lib/cloud"),
)
"""What the base has and no image of a pod does."""


def packages() -> list[str]:
    """The packages that the container's own list names."""
    lines = (_CONTAINER / "packages").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


async def ensure(base: Path) -> Path:
    """The layer that makes an image a pod's: what the Dockerfile copies and builds, and what is hidden of the base.

    Args:
        base: the lowest layer.
    """
    parts = [
        Path(__file__).read_bytes(),
        base.name.encode(),
        *trees.contents(_CONTAINER, {name for names in BUILT.values() for name in names}),
    ]

    async def build(root: Path) -> None:
        await _lay_out(root)
        for path in HIDDEN:
            if (base / path).exists() or (base / path).is_symlink():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                # To overlayfs this means: no such file.
                os.mknod(root / path, stat.S_IFCHR, os.makedev(0, 0))

    return await cache.ensure("layers", "pod", cache.recipe_key(*parts), build)


async def _lay_out(root: Path) -> None:
    """Copy the files of deploy/container as its Dockerfile does, and build what is in C."""
    target = root / FILES
    for source in trees.sources(_CONTAINER):
        place = source.relative_to(_CONTAINER)
        if place.parts[0] in COPIED:
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / place)
            (target / place).chmod(source.stat().st_mode & 0o755)
    for sources, names in BUILT.items():
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder) / sources
            shutil.copytree(_CONTAINER / sources, build, ignore=shutil.ignore_patterns(*names))
            await proc.run(["make", "--silent", "-C", build, *names], timeout_s=120)
            for name in names:
                shutil.copy(build / name, target / name)
