"""Builds the Debian package for heads of the sandbox, with wheels that are fetched once."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from deploy.sandbox import cache, proc, wheels
from deploy.sandbox.images import ensure_base
from deploy.sandbox.progress import step

_CHECKOUT = Path(__file__).resolve().parents[2]
_LOCKS = _CHECKOUT / "deploy/head/requirements"
_PACKAGED = ("base", "aws", "gce")
_BUILD_TIMEOUT_S = 300.0


async def ensure_wheels(suite: str = "trixie") -> Path:
    """A folder with the wheels of the locks, for the python3 of a suite and for the one that builds."""
    base = await ensure_base(suite)
    locks = [_LOCKS / f"{name}.txt" for name in (*_PACKAGED, "build")]
    version = platform.python_version_tuple()[:2]
    key = cache.recipe_key(base.name, *version, *(lock.read_bytes() for lock in locks))

    async def build(folder: Path) -> None:
        log = cache.log_file("wheels-package")
        async with step("wheels for the package", log):
            words = ["--require-hashes", *(word for lock in locks for word in ("--requirement", str(lock)))]
            await wheels.download(words, folder, base, log)
            own = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-input", "--dest"]
            await proc.run([*own, folder, "--only-binary=:all:", *words], timeout_s=_BUILD_TIMEOUT_S, log=log)

    return await cache.ensure("wheels-package", suite, key, build)


async def build_words(checkout: Path, output: Path, suite: str = "trixie") -> list[str | Path]:
    """The command that builds the package of a checkout, for the python3 of a suite, without a network."""
    folder, python = await ensure_wheels(suite), wheels.image_python(await ensure_base(suite))
    builder = checkout / "deploy/package/build"
    return [builder, "--pythons", python, "--wheels", folder, "--output", output]


async def build(checkout: Path, output: Path, suite: str = "trixie") -> Path:
    """The package of a checkout, for the python3 of a suite.

    Args:
        checkout: whose `deploy/package/build` runs.
        output: the folder for it.
        suite: Debian's.

    Raises:
        CommandError: the build failed.
    """
    done = await proc.run(await build_words(checkout, output, suite), timeout_s=_BUILD_TIMEOUT_S)
    return Path(done.text.splitlines()[-1].removeprefix("meshd: ").partition(",")[0])
