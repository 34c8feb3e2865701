"""Prometheus, promtool and node_exporter, of Debian's packages: for tests. Nothing is installed on the host."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from deploy.sandbox import cache, images, proc
from deploy.sandbox.progress import step

SUITE = "trixie"
"""The head's: Prometheus runs there."""
PROGRAMS = ("prometheus", "promtool", "prometheus-node-exporter")
"""The packages; each has one program of its name."""
_UNPACK_TIMEOUT_S = 120.0


async def ensure_prometheus() -> Path:
    """The folder with the programs.

    Raises:
        CommandError: a package could not be downloaded.
    """
    base = await images.ensure_base(SUITE)
    key = cache.recipe_key(base.name, *PROGRAMS)

    async def build(root: Path) -> None:
        log = cache.log_file("prometheus")
        async with step(f"Prometheus ({', '.join(PROGRAMS)})", log):
            debs = await images.fetch_packages(base, SUITE, PROGRAMS, log)
            with tempfile.TemporaryDirectory(dir=root.parent) as unpacked:
                for name in PROGRAMS:
                    deb = max(debs.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
                    argv: list[str | Path] = ["dpkg-deb", "--extract", deb, unpacked]
                    await proc.run(argv, timeout_s=_UNPACK_TIMEOUT_S, log=log)
                    shutil.copy2(Path(unpacked) / "usr/bin" / name, root / name)

    return await cache.ensure("tools", "prometheus", key, build)
