"""Machine images: a Debian that boots, made once per suite, under a few thin layers that change more often.

An image is a stack of directories, topmost first, which overlayfs joins when a machine starts:

    [head]      the virtual environment of meshd's dependencies (the head only)
    config      units, cloud-init's settings, stand-ins: what this repository says
    tailscale   the tailscale binaries
    [torch]     PyTorch, Open MPI and mpi4py (images of the name SUITE-torch)
    base        Debian of one suite with systemd, cloud-init, Slurm and munge
"""

from __future__ import annotations

import platform
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox import cache, debian, gotools, proc, wheels
from deploy.sandbox.isolate import in_own_namespaces
from deploy.sandbox.progress import step

SUITES = ("trixie", "bookworm")
"""Images by name: Slurm 24.11 (trixie) and Slurm 22.05 (bookworm)."""

TORCH = "-torch"
"""What the name of an image ends with that also has `TORCH_PACKAGES`."""

TORCH_PACKAGES = ("python3-torch", "openmpi-bin", "python3-mpi4py")

_HERE = Path(__file__).resolve().parent
_IMAGE = _HERE / "image"
PYPROJECT = _HERE.parents[1] / "pyproject.toml"
SDKS = ("aws", "gce")
"""The extras that the head gets: the SDKs of the clouds that have one."""
_NVIDIA_SMI_OUTPUT = _HERE / "fixtures" / "nvidia-smi" / "h100" / "smi_q.xml"

PACKAGES = [
    "systemd",
    "systemd-sysv",
    "dbus",
    "cloud-init",
    "python3",
    "python3-venv",
    "iproute2",
    "iptables",
    "nftables",
    "curl",
    "ca-certificates",
    "munge",
    "slurmctld",
    "slurmd",
    "slurm-client",
    "openssh-server",
    "procps",
    "iputils-ping",
    "netcat-openbsd",
]

# Nothing here serves a machine that lives for minutes in a sandbox, and each would cost every boot. networkd would drop
# the addresses that the sandbox gives its machines.
MASKED = [
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "cloud-init-hotplugd.socket",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "ldconfig.service",
    "man-db.timer",
    "systemd-firstboot.service",
    "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service",
    "systemd-logind.service",
    "systemd-networkd-wait-online.service",
    "systemd-networkd.service",
    "systemd-networkd.socket",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-update-done.service",
]

_BUILD_TIMEOUT_S = 1800.0
_PIP_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class MachineImage:
    """What a machine boots from: directories, topmost first."""

    name: str
    layers: tuple[Path, ...]

    @property
    def lowerdir(self) -> str:
        """The stack as overlayfs wants it."""
        return ":".join(str(layer) for layer in self.layers)


async def image_by_name(name: str) -> MachineImage:
    """The image that a machine's spec names: one of `SUITES`, one of them with `TORCH` appended, or "head".

    Raises:
        ValueError: there is no such image.
        CommandError: it had to be built, and that failed.
    """
    return await ensure_head_image(PYPROJECT) if name == "head" else await ensure_image(name)


async def ensure_image(name: str) -> MachineImage:
    """The image `name` ("trixie", "bookworm", "trixie-torch"), built first if the cache has none of this recipe.

    Raises:
        ValueError: there is no such image.
        CommandError: the build failed; the message carries the end of its output.
    """
    suite = name.removesuffix(TORCH)
    if suite not in SUITES:
        raise ValueError(f"no image {name!r}: there are {', '.join(SUITES)}, each also with {TORCH} appended")
    packages = () if suite == name else (await ensure_torch_layer(suite),)
    layers = (await _ensure_config(), await gotools.ensure_tailscale(), *packages, await ensure_base(suite))
    return MachineImage(name, layers)


async def ensure_head_image(pyproject: Path) -> MachineImage:
    """The trixie image plus /opt/meshd/venv with everything that meshd depends on (not meshd itself).

    Args:
        pyproject: the pyproject.toml whose dependencies and `SDKS` are installed.
    """
    image = await ensure_image("trixie")
    return MachineImage("head", (await ensure_head_layer(pyproject), *image.layers))


def requirements(pyproject: Path) -> tuple[str, ...]:
    """What the head needs of PyPI, by pyproject.toml: the dependencies, the clouds' SDKs, and the build back end."""
    data = tomllib.loads(pyproject.read_text())
    project = data["project"]
    extras = project.get("optional-dependencies", {})
    sdks = {requirement for name in SDKS for requirement in extras.get(name, ())}
    # The back end too: the head installs meshd itself without a network, hence without build isolation.
    return tuple(sorted({*project["dependencies"], *sdks, *data["build-system"]["requires"], "editables"}))


async def ensure_base(suite: str) -> Path:
    """The lowest layer of the images of one Debian suite."""
    builder = _IMAGE / "build_base.sh"
    key = cache.recipe_key(suite, platform.machine(), builder.read_bytes(), " ".join(PACKAGES))

    async def build(root: Path) -> None:
        log = cache.log_file(f"image-{suite}")
        async with step(f"image {suite} (Debian, systemd, Slurm)", log):
            await _with_apt("build_base.sh", [root, suite], suite, PACKAGES, log)

    return await cache.ensure("images", suite, key, build)


async def ensure_torch_layer(suite: str) -> Path:
    """The layer that `TORCH_PACKAGES` and what they depend on make over the base of a suite."""
    base = await ensure_base(suite)
    builder = _IMAGE / "build_packages.sh"
    key = cache.recipe_key(base.name, builder.read_bytes(), *TORCH_PACKAGES)

    async def build(layer: Path) -> None:
        log = cache.log_file(f"image-{suite}{TORCH}")
        async with step(f"packages over {suite} ({', '.join(TORCH_PACKAGES)})", log):
            with tempfile.TemporaryDirectory(dir=layer.parent) as work:
                await _with_apt("build_packages.sh", [base, layer, work, suite], suite, TORCH_PACKAGES, log)

    return await cache.ensure("layers", f"{suite}{TORCH}", key, build)


async def _with_apt(builder: str, words: Sequence[str | Path], suite: str, packages: Sequence[str], log: Path) -> None:
    """Run a builder with its own words, then what apt needs, then the packages to install."""
    debs = cache.cache_root() / "debs" / suite
    debs.mkdir(parents=True, exist_ok=True)
    archive, security = debian.mirrors()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write(await debian.apt_settings())
        settings.flush()
        apt: list[str | Path] = [archive, security, debs, settings.name, debian.ca_bundle()]
        await proc.run(
            in_own_namespaces(["sh", _IMAGE / builder, *words, *apt, *packages]),
            timeout_s=_BUILD_TIMEOUT_S,
            env=debian.builder_environment(),
            log=log,
        )


async def _ensure_config() -> Path:
    files = _IMAGE / "files"
    sources = sorted(path for path in files.rglob("*") if path.is_file())
    shift = _IMAGE / "clockshift.c"
    parts: list[str | bytes] = [Path(__file__).read_bytes(), shift.read_bytes(), _NVIDIA_SMI_OUTPUT.read_bytes()]
    for source in sources:
        parts += [str(source.relative_to(files)), source.read_bytes()]

    async def build(root: Path) -> None:
        for source in sources:
            target = root / source.relative_to(files)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o755 if target.parent.name == "bin" else 0o644)
        units = root / "etc/systemd/system"
        for unit in MASKED:
            (units / unit).symlink_to("/dev/null")
        wanted = units / "multi-user.target.wants"
        wanted.mkdir(parents=True)
        (wanted / "tailscaled.service").symlink_to("/usr/lib/systemd/system/tailscaled.service")
        hardware = root / "usr/share/sandbox"
        hardware.mkdir(parents=True)
        shutil.copyfile(_NVIDIA_SMI_OUTPUT, hardware / "nvidia-smi-q.xml")
        library = root / "usr/lib/sandbox"
        library.mkdir(parents=True)
        await proc.run(["cc", "-O2", "-shared", "-fPIC", "-o", library / "clockshift.so", shift, "-ldl"], timeout_s=60)

    return await cache.ensure("layers", "config", cache.recipe_key(*parts), build)


async def ensure_head_layer(pyproject: Path) -> Path:
    """The layer that makes a trixie image the head's."""
    base, packages = await ensure_base("trixie"), requirements(pyproject)
    builder = _IMAGE / "build_head.sh"
    key = cache.recipe_key(base.name, builder.read_bytes(), *packages)

    async def build(layer: Path) -> None:
        log = cache.log_file("image-head")
        store = cache.cache_root() / "wheels"
        store.mkdir(parents=True, exist_ok=True)
        async with step("head image (meshd's dependencies)", log):
            await wheels.download(packages, store, base, log)
            (layer / "opt/meshd").mkdir(parents=True)
            await proc.run(
                in_own_namespaces(["sh", builder, base, layer / "opt/meshd", store, *packages]),
                timeout_s=_PIP_TIMEOUT_S,
                env=debian.builder_environment(),
                log=log,
            )

    return await cache.ensure("layers", "head", key, build)
