"""The Dockerfile builds, as the page says, over a small Debian of the sandbox in place of a registry's images."""

from __future__ import annotations

import os
import resource
import shlex
from pathlib import Path

import pytest

from deploy.sandbox import debian, gotools, images, proc
from deploy.sandbox.isolate import in_own_namespaces
from tests import documents
from tests.here import Here

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # test_pod_image boots the same files, and this downloads Slurm once more
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

BUILD_S = 700.0
BASES = (
    "docker.io/library/ubuntu:24.04",
    "localhost/nvidia/cuda:12.8.1-runtime-ubuntu24.04",
    "localhost/my/pytorch-image",
)
"""What the page's commands build on."""
IMAGE = "registry.example.org/meshd-pod"
PODMAN = "podman --storage-driver overlay --root /store/root --runroot /store/run"
LIMITS = {
    name: resource.getrlimit(number)[1]
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))
}
HERE = " ".join(
    ["--pull=never", "--build-arg TAILSCALE_FROM=", *(f"--ulimit {name}={n}:{n}" for name, n in LIMITS.items())]
)
"""Neither registries nor tailscale's archive are asked, and root in here may not raise a limit."""

# An image with podman, in which STORE keeps its images and the checkout is the working directory.
INSIDE = """\
set -eu
layers=$1 store=$2 checkout=$3
shift 3
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$layers,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
mkdir /mnt/root/store /mnt/root/checkout
mount --bind "$store" /mnt/root/store
mount --bind "$checkout" /mnt/root/checkout
mount -t proc proc /mnt/root/proc
mount --rbind /sys /mnt/root/sys
mount --rbind /dev /mnt/root/dev
mount -t tmpfs tmpfs /mnt/root/tmp
cat /etc/resolv.conf >/mnt/root/etc/resolv.conf
exec chroot /mnt/root sh -c 'cd /checkout && exec "$@"' sh "$@"
"""
# What the registry's images are here: a small Debian with tailscale, which fetches as this host does.
BASE = """\
set -eu
stock=$1 tailscale=$2 files=$3
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$files:$tailscale:$stock,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
tar -C /mnt/root -cf "$4" .
"""


LOOK = f"""\
root=$({PODMAN} mount $({PODMAN} create --network none {IMAGE}))
for name in entrypoint meshnetd service/slurmd/run; do
    test -x $root/usr/lib/meshd/pod/$name
done
for name in etc/munge/munge.key usr/sbin/policy-rc.d tmp/meshd usr/bin/gcc; do
    test ! -e $root/$name
done
for program in 'slurmd -V' 'munged -V' 'tailscale version' 'python3 -V' 'command -v scontrol' 'command -v s6-svscan'; do
    chroot $root sh -c "$program" >&2
done
ls $root/usr/lib/meshd/pod
"""


class Inside:
    """The image with podman, for one test.

    Args:
        folder: empty, on a disk.
        layers: of the image, topmost first.
    """

    def __init__(self, folder: Path, layers: list[Path]) -> None:
        self.store = folder / "store"
        self.store.mkdir()
        words = ["sh", "-c", INSIDE, "sh", ":".join(map(str, layers)), self.store, documents.ROOT]
        self._argv = in_own_namespaces(words)

    async def sh(self, script: str) -> str:
        """Run lines of sh; what they printed."""
        return (await proc.run([*self._argv, "sh", "-euxc", script], timeout_s=120)).text

    async def podman(self, *words: str) -> str:
        """Run podman; what it printed."""
        return await self.sh(f"{PODMAN} {shlex.join(words)}")

    def script(self, path: Path) -> Path:
        """A program that runs podman with the words that it is given."""
        path.write_text(f'#!/bin/sh\nexec {shlex.join(self._argv)} {PODMAN} "$@"\n')
        path.chmod(0o755)
        return path


@pytest.fixture
async def inside(tmp_path: Path) -> Inside:
    """With an image under the names of all on which the page builds."""
    found = Inside(tmp_path, [await images.ensure_podman_layer("trixie"), await images.ensure_base("trixie")])
    files = tmp_path / "files"
    settings, certificate = files / "etc/apt/apt.conf.d/99host", files / "etc/ssl/certs/host.crt"
    settings.parent.mkdir(parents=True)
    certificate.parent.mkdir(parents=True)
    settings.write_text((await debian.apt_settings()).replace("/run/ca-host.crt", "/etc/ssl/certs/host.crt"))
    if (bundle := debian.ca_bundle()).is_file():
        certificate.write_bytes(bundle.read_bytes())
    words = [await images.ensure_stock("trixie"), await gotools.ensure_tailscale(), files, found.store / "base.tar"]
    await proc.run(in_own_namespaces(["sh", "-c", BASE, "sh", *words]), timeout_s=120)
    await found.podman("import", "--quiet", "/store/base.tar", BASES[0])
    for name in BASES[1:]:
        await found.podman("tag", BASES[0], name)
    return found


async def test_it_builds_an_image_of_a_pod(inside: Inside, tmp_path: Path) -> None:
    """podman in place of Docker; the other commands of the page find what the first one has made."""
    (block,) = documents.share(__file__, "docs/containers.md")
    program = inside.script(tmp_path / "docker")
    build = f"{program} build --isolation chroot"
    words = {"docker build": build, "podman build --isolation chroot": build, " -f ": f" {HERE} -f "}
    Here(tmp_path, words=words, timeout_s=BUILD_S).block(block)
    assert '"Entrypoint":["/usr/lib/meshd/pod/entrypoint"]' in "".join((await inside.podman("inspect", IMAGE)).split())
    assert set((await inside.sh(LOOK)).split()) == {
        "entrypoint", "has-tun", "libmeshnet.so", "libslurmconf.so", "log", "meshnetd", "service", "stop",
    }  # fmt: skip
