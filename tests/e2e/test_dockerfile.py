"""The Dockerfile builds, over a small Debian of the sandbox in place of a registry's image."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from deploy.sandbox import debian, gotools, images, proc

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # test_pod_image boots the same files, and this downloads Slurm once more
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("buildah"), reason="needs root and buildah"),
]

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/base"
IMAGE = "localhost/pod"
PREPARE = """
set -e
cp -a "$1/." "$2/."
cp -a "$3/." "$2/"
cp "$4" "$2/etc/apt/apt.conf.d/99host"
[ ! -f "$5" ] || cp "$5" "$2/etc/ssl/certs/host.crt"
"""


class Buildah:
    """buildah with a store of its own."""

    def __init__(self, store: Path) -> None:
        self._argv = [
            "buildah",
            "--storage-driver",
            "vfs",
            "--root",
            str(store / "root"),
            "--runroot",
            str(store / "run"),
        ]

    async def __call__(self, *words: str | Path, timeout_s: float = 120.0) -> str:
        result = await proc.run([*self._argv, *words], timeout_s=timeout_s, cwd=ROOT)
        return result.text.strip()


@pytest.fixture
async def buildah(tmp_path: Path) -> Buildah:
    """With an image of Debian and tailscale, which fetches as this host does."""
    found = Buildah(tmp_path)
    settings = tmp_path / "apt.conf"
    settings.write_text((await debian.apt_settings()).replace("/run/ca-host.crt", "/etc/ssl/certs/host.crt"))
    base, tailscale = await images.ensure_stock("trixie"), await gotools.ensure_tailscale()
    container = await found("from", "scratch")
    root = await found("mount", container)
    argv = ["sh", "-c", PREPARE, "sh", base, root, tailscale, settings, debian.ca_bundle()]
    await proc.run(argv, timeout_s=120)
    await found("umount", container)
    await found("commit", "--quiet", container, BASE)
    await found("rm", container)
    return found


async def test_it_builds_an_image_of_a_pod(buildah: Buildah) -> None:
    arguments = ["--build-arg", f"BASE={BASE}", "--build-arg", "TAILSCALE_FROM="]
    words = ["--isolation", "chroot", "--layers=false", *arguments, "-f", "deploy/container/Dockerfile", "-t", IMAGE]
    await buildah("bud", *words, ".", timeout_s=700)
    assert '"Entrypoint":["/usr/lib/meshd/pod/entrypoint"]' in (await buildah("inspect", IMAGE)).replace("\\", "")
    root = Path(await buildah("mount", await buildah("from", IMAGE)))
    pod = root / "usr/lib/meshd/pod"
    assert {path.name for path in pod.iterdir()} == {
        "entrypoint", "has-tun", "libmeshnet.so", "libslurmconf.so", "log", "meshnetd", "service", "stop",
    }  # fmt: skip
    for name in ("entrypoint", "meshnetd", "service/slurmd/run"):
        assert os.access(pod / name, os.X_OK), name
    assert not (root / "etc/munge/munge.key").exists()
    assert not (root / "usr/sbin/policy-rc.d").exists()
    assert [name for name in ("tmp/meshd", "usr/bin/gcc") if (root / name).exists()] == []
    programs = [
        "slurmd -V",
        "munged -V",
        "tailscale version",
        "python3 -V",
        "command -v scontrol",
        "command -v s6-svscan",
    ]
    for program in programs:
        await asyncio.wait_for(proc.run(["chroot", root, "sh", "-c", program], timeout_s=30), 40)
