"""Machine images: a Debian that boots, made once per suite, under a few thin layers that change more often.

An image is a stack of directories, topmost first, which overlayfs joins when a machine starts:

    [mlflow]    the virtual environment of MLflow's server (the image "head-mlflow" only)
    [nfs]       what stands for the kernel's NFS server (the head only)
    [head]      the virtual environment of meshd's dependencies (the head only)
    [services]  the packages of services that may run on a head (the head only)
    config      units and cloud-init's settings (not in images of pods)
    share       what stands for the kernel's NFS client (not in images of pods)
    [pod]       the files of deploy/container, with systemd and cloud-init hidden (images of the name SUITE-pod)
    hardware    stand-ins for GPUs and a wrong clock
    tailscale   the tailscale binaries
    [programs]  programs that a cloud's images have (not in images of pods)
    [s6]        the packages of a pod that the base lacks (images of the name SUITE-pod)
    [torch]     PyTorch, Open MPI, a C compiler, crun, umoci and skopeo (images of the name SUITE-torch or
                SUITE-torch-pod)
    [podman]    podman (images of the name SUITE-podman)
    base        Debian of one suite with systemd, cloud-init, Slurm and munge

The image SUITE-stock-pod has nothing of that. It is like those that a cloud offers: a small Debian with Python.
SUITE-stock is the same for machines that boot: Debian with systemd, cloud-init and Python.

The image SUITE-plain is for machines that no cloud made: Debian with systemd, and stand-ins for GPUs. It lacks Python,
cloud-init, tailscale, Slurm and munge.

The images SUITE-uml and head-uml are for machines with a kernel of their own: what is below `tailscale` is the file of
a disk there, with that kernel's modules and the programs of NFS.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox import cache, debian, gotools, pod_layer, proc, trees, wheels
from deploy.sandbox.isolate import in_own_namespaces
from deploy.sandbox.progress import step

SUITES = ("trixie", "bookworm")
"""Images by name: Slurm 24.11 (trixie) and Slurm 22.05 (bookworm)."""

TORCH = "-torch"
"""What the name of an image ends with that also has `TORCH_PACKAGES`."""

PODMAN = "-podman"
"""What the name of an image ends with that also has `PODMAN_PACKAGES`."""

POD = "-pod"
"""What the name of a pod's image ends with."""

STOCK = "-stock"
"""What the name of an image ends with that a cloud offers to everybody; that of a pod's image has `POD` after it."""

PLAIN = "-plain"
"""What the name of an image ends with whose machines somebody owns: no cloud made them."""

UML = "-uml"
"""What the name of an image ends with whose machines have a kernel of their own (user-mode Linux)."""

HEAD, HEAD_MLFLOW = "head", "head-mlflow"
"""The images of heads. The second has what `deploy/services/mlflow/install` needs, and serves as PyPI for its users."""

USER_WHEELS = ("mlflow-skinny==3.17.2", "ray==2.60.0", "submitit==1.5.4")
"""What users of a head can install with pip, with all that it depends on."""

STOCK_PACKAGES = ("curl", "iproute2", "iputils-ping", "netcat-openbsd", "openssh-server", "procps", "python3")

PLAIN_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "init", "cron", "sudo"),
    *("curl", "iproute2", "iputils-ping", "nftables", "openssh-server", "procps"),
)
"""What a small installation of Debian has on a machine of its owner."""

CLOUD_PACKAGES = (*PLAIN_PACKAGES, "ca-certificates", "cloud-init", "iptables", "netcat-openbsd", "python3")
"""What a cloud's own image has for machines that boot."""

TORCH_PACKAGES = (
    *("python3-torch", "openmpi-bin", "python3-mpi4py"),
    *("gcc", "libc6-dev", "libopenmpi-dev"),
    *("crun", "umoci", "skopeo"),
)
"""What the recipes need on nodes: PyTorch; Open MPI, and a compiler for it; a runtime for containers, and what fetches
and unpacks images."""

PODMAN_PACKAGES = ("podman", "uidmap")
"""What a job needs that starts podman; it also builds images."""

_HERE = Path(__file__).resolve().parent
_IMAGE = _HERE / "image"
FILES = _IMAGE / "files"
"""What machines of clouds have besides their packages."""
_MLFLOW = _HERE.parent / "services" / "mlflow"
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

NFS_PACKAGES = ("nfs-kernel-server",)

NFS_MASKED = ["nfs-blkmap.service", "nfs-client.target", "run-rpc_pipefs.mount"]
"""Units of these packages that fail without the kernel's part of NFS."""

HEAD_PACKAGES = (*NFS_PACKAGES, "mariadb-server", "slurmdbd")
"""What the head has besides."""

HEAD_DISABLED = ["mariadb.service", "slurmdbd.service"]
"""These units of them start only on a head where somebody has enabled them."""

VM_PROGRAMS = {"rsync": "usr/bin/rsync"}
"""Packages whose program a cloud's images have, and what is taken of them: all that it needs is in the base."""

UML_PACKAGE = "user-mode-linux"
_UML_SUITE = "bookworm"
"""The newest release of Debian that has the package."""
_UML_PACKAGES = {"server": ("kmod", *NFS_PACKAGES), "client": ("kmod", "nfs-common")}
# This kernel knows no nf_tables for IP: iptables has to use the older interface.
_UML_LEGACY = [f"{name}{end}" for name in ("iptables", "ip6tables") for end in ("", "-restore", "-save")]
_UML_DISK_SIZE = "8G"
# Each costs a share of a second of a processor, and serves nothing here.
_UML_MASKED = (
    "modprobe@.service",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "systemd-binfmt.service",
    "systemd-random-seed.service",
)

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

_STOCK_ENTRYPOINT = ("/opt/nvidia/nvidia_entrypoint.sh",)
_STOCK_COMMAND = ("/start.sh",)

_BUILD_TIMEOUT_S = 1800.0
_UNPACK_TIMEOUT_S = 120.0
_PIP_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class MachineImage:
    """What a machine boots from: directories, topmost first.

    Attributes:
        name: of the image.
        layers: the directories.
        disk: of a machine with a kernel of its own: the file of a disk, over whose files those of the layers go.
        kernel: of such a machine: the program that is its kernel.
        entrypoint: of a container: the beginning of its first process's command line.
        command: of a container: what follows the entrypoint where nobody gives other arguments.
    """

    name: str
    layers: tuple[Path, ...]
    disk: Path | None = None
    kernel: Path | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @property
    def lowerdir(self) -> str:
        """The stack as overlayfs wants it."""
        return ":".join(str(layer) for layer in self.layers)


async def image_by_name(name: str) -> MachineImage:
    """The image that a machine's spec names: one of `SUITES`, with or without `TORCH`, `POD` or both, or `PODMAN`, or
    `UML`, or `PLAIN`, or `STOCK`; or of a head: `HEAD`, with or without `UML`, or `HEAD_MLFLOW`.

    Raises:
        ValueError: there is no such image.
        CommandError: it had to be built, and that failed.
    """
    if name.endswith(UML):
        return await ensure_uml_image(name)
    if name.endswith(STOCK):
        return await ensure_cloud_image(name)
    if name.endswith(PLAIN):
        return await ensure_plain_image(name)
    if name in {HEAD, HEAD_MLFLOW}:
        return await ensure_head_image(PYPROJECT, mlflow=name == HEAD_MLFLOW)
    return await ensure_image(name)


async def ensure_image(name: str) -> MachineImage:
    """The image `name` ("trixie", "bookworm-pod", "trixie-torch-pod"), built first if the cache lacks it.

    Raises:
        ValueError: there is no such image.
        CommandError: the build failed; the message carries the end of its output.
    """
    pod, rest = name.endswith(POD), name.removesuffix(POD)
    stock = pod and rest.endswith(STOCK)
    podman = not pod and rest.endswith(PODMAN)
    suite = rest.removesuffix(STOCK if stock else PODMAN if podman else TORCH)
    if suite not in SUITES:
        ends = f"{TORCH}, {POD}, {TORCH}{POD}, {STOCK}{POD} or {PODMAN}"
        raise ValueError(f"no image {name!r}: there are {', '.join(SUITES)}, each also with {ends} appended")
    if stock:
        layers = (await _ensure_stock_config(), await _ensure_hardware(), await ensure_stock(suite))
        return MachineImage(name, layers, entrypoint=_STOCK_ENTRYPOINT, command=_STOCK_COMMAND)
    base = await ensure_base(suite)
    add = ensure_podman_layer if podman else ensure_torch_layer
    more = () if suite == rest else (await add(suite),)
    stand_ins = (await _ensure_hardware(), await gotools.ensure_tailscale())
    if not pod:
        own = (await _ensure_config(), await _ensure_share(), *stand_ins, await ensure_programs_layer(suite))
        return MachineImage(name, (*own, *more, base))
    layers = (await pod_layer.ensure(base), *stand_ins, await ensure_s6_layer(suite), *more, base)
    return MachineImage(name, layers, entrypoint=(f"/{pod_layer.FILES}/entrypoint",))


async def ensure_head_image(pyproject: Path, *, mlflow: bool = False) -> MachineImage:
    """The trixie image plus /opt/meshd/venv with everything that meshd depends on (not meshd itself).

    Args:
        pyproject: the pyproject.toml whose dependencies and `SDKS` are installed.
        mlflow: it also has /opt/meshd-mlflow/venv, and wheels for users.
    """
    image = await ensure_image("trixie")
    more = (await ensure_mlflow_layer(), await ensure_wheels_layer()) if mlflow else ()
    layers = (await _ensure_nfs_config(), await ensure_head_layer(pyproject), await ensure_services_layer("trixie"))
    return MachineImage(HEAD_MLFLOW if mlflow else HEAD, (*more, *layers, *image.layers))


def has_uml() -> bool:
    """Whether there is a kernel for machines that have one of their own, on this host's processor."""
    return platform.machine() == "x86_64"


async def ensure_uml_image(name: str) -> MachineImage:
    """The image `name` ("trixie-uml", "head-uml") of machines with a kernel of their own.

    Raises:
        ValueError: there is no such image, or no such kernel for this host's processor.
        CommandError: the build failed; the message carries the end of its output.
    """
    role = name.removesuffix(UML)
    suite, head = ("trixie", True) if role == "head" else (role, False)
    if suite not in SUITES:
        raise ValueError(f"no image {name!r}: there are {', '.join(SUITES)} and head, each with {UML} appended")
    if not has_uml():
        raise ValueError(f"no image {name!r}: Debian has {UML_PACKAGE} for amd64 only")
    kernel, base = await ensure_uml_kernel(), await ensure_base(suite)
    use = "server" if head else "client"
    packages = await _ensure_packages(suite, f"-uml-{use}", _UML_PACKAGES[use])
    layers = [*([await ensure_head_layer(PYPROJECT)] if head else []), kernel / "files", packages, base]
    disk = await _ensure_uml_disk(role, layers)
    thin = (await _ensure_config(), await _ensure_hardware(), await gotools.ensure_tailscale())
    return MachineImage(name, thin, disk=disk, kernel=kernel / "linux.uml")


async def ensure_uml_kernel() -> Path:
    """A directory with the kernel as a program, `linux.uml`, and with `files`: its modules, and the first process.

    `xstate.so` beside it is for processors that Debian's kernel is too old for (launch_uml.sh).
    """
    files, xstate = _IMAGE / "uml", _IMAGE / "xstate.c"
    key = cache.recipe_key(UML_PACKAGE, *_UML_MASKED, *_UML_LEGACY, xstate.read_bytes(), *trees.contents(files))

    async def build(root: Path) -> None:
        log = cache.log_file("uml-kernel")
        async with step(f"a kernel that is a program ({UML_PACKAGE})", log):
            debs = await fetch_packages(await ensure_base(_UML_SUITE), _UML_SUITE, [UML_PACKAGE], log)
            package = max(debs.glob(f"{UML_PACKAGE}_*.deb"), key=lambda path: path.stat().st_mtime)
            unpacked = root / "unpacked"
            await proc.run(["dpkg-deb", "--extract", package, unpacked], timeout_s=_UNPACK_TIMEOUT_S, log=log)
            (unpacked / "usr/bin/linux.uml").rename(root / "linux.uml")
            shared = root / "xstate.so"
            await proc.run(["cc", "-O2", "-shared", "-fPIC", "-o", shared, xstate, "-ldl"], timeout_s=60, log=log)
            modules = root / "files/usr/lib/modules"
            modules.parent.mkdir(parents=True)
            (unpacked / "usr/lib/uml/modules").rename(modules)
            shutil.rmtree(unpacked)
            trees.copy(files, root / "files", mode=0o755)
            units = root / "files/etc/systemd/system"
            units.mkdir(parents=True)
            for unit in _UML_MASKED:
                (units / unit).symlink_to("/dev/null")
            alternatives = root / "files/etc/alternatives"
            alternatives.mkdir()
            for name in _UML_LEGACY:
                (alternatives / name).symlink_to(f"/usr/sbin/{name.replace('tables', 'tables-legacy')}")

    return await cache.ensure("tools", "uml", key, build)


async def _ensure_uml_disk(role: str, layers: Sequence[Path]) -> Path:
    """The file of a disk with all that is in these layers, topmost first."""
    builder = _IMAGE / "build_disk.sh"
    key = cache.recipe_key(builder.read_bytes(), _UML_DISK_SIZE, *(str(layer) for layer in layers))

    async def build(root: Path) -> None:
        log = cache.log_file(f"image-{role}{UML}")
        async with step(f"image {role}{UML} (a disk)", log):
            lowerdir = ":".join(str(layer) for layer in layers)
            words = in_own_namespaces(["sh", builder, root / "disk", lowerdir, _UML_DISK_SIZE])
            await proc.run(words, timeout_s=_BUILD_TIMEOUT_S, log=log)

    return await cache.ensure("images", f"{role}{UML}", key, build) / "disk"


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


async def ensure_stock(suite: str) -> Path:
    """The lowest layer of the stock image of one Debian suite."""
    builder = _IMAGE / "build_stock.sh"
    key = cache.recipe_key(suite, platform.machine(), builder.read_bytes(), *STOCK_PACKAGES)

    async def build(root: Path) -> None:
        log = cache.log_file(f"image-{suite}{STOCK}")
        async with step(f"image {suite}{STOCK}{POD} (a small Debian with Python)", log):
            await _with_apt("build_stock.sh", [root, suite], suite, STOCK_PACKAGES, log)

    return await cache.ensure("images", f"{suite}{STOCK}", key, build)


async def ensure_plain_image(name: str) -> MachineImage:
    """The image `name` ("trixie-plain"). Raises ValueError where there is no such image, CommandError as a build."""
    suite = name.removesuffix(PLAIN)
    if suite not in SUITES:
        raise ValueError(f"no image {name!r}: there are {', '.join(SUITES)}, each with {PLAIN} appended")
    return MachineImage(name, (await _ensure_plain_config(), await _ensure_hardware(), await ensure_plain(suite)))


async def ensure_cloud_image(name: str) -> MachineImage:
    """The image `name` ("trixie-stock"). Raises ValueError where there is no such image, CommandError as a build."""
    suite = name.removesuffix(STOCK)
    if suite not in SUITES:
        raise ValueError(f"no image {name!r}: there are {', '.join(SUITES)}, each with {STOCK} appended")
    config = await _ensure_config(tailscaled=False)
    files = (await _ensure_plain_config(), config, await _ensure_share(), await _ensure_hardware())
    return MachineImage(name, (*files, await ensure_cloud(suite)))


async def ensure_cloud(suite: str) -> Path:
    """The lowest layer of a cloud's own image of one Debian suite."""
    builder = _IMAGE / "build_stock.sh"
    key = cache.recipe_key(suite, platform.machine(), builder.read_bytes(), *CLOUD_PACKAGES)

    async def build(root: Path) -> None:
        log = cache.log_file(f"image-{suite}-cloud")
        async with step(f"image {suite}{STOCK} (a Debian with cloud-init)", log):
            await _with_apt("build_stock.sh", [root, suite], suite, CLOUD_PACKAGES, log)

    return await cache.ensure("images", f"{suite}-cloud", key, build)


async def ensure_plain(suite: str) -> Path:
    """The lowest layer of the plain image of one Debian suite."""
    builder = _IMAGE / "build_stock.sh"
    key = cache.recipe_key(suite, platform.machine(), builder.read_bytes(), *PLAIN_PACKAGES)

    async def build(root: Path) -> None:
        log = cache.log_file(f"image-{suite}{PLAIN}")
        async with step(f"image {suite}{PLAIN} (a small Debian with systemd)", log):
            await _with_apt("build_stock.sh", [root, suite], suite, PLAIN_PACKAGES, log)

    return await cache.ensure("images", f"{suite}{PLAIN}", key, build)


async def _ensure_plain_config() -> Path:
    folders = [_IMAGE / "files/etc/systemd", _IMAGE / "files/etc/ssh", _IMAGE / "stock/etc/apt"]
    parts = [part for folder in folders for part in trees.contents(folder)]

    async def build(root: Path) -> None:
        for folder in folders:
            trees.copy(folder, root / "etc" / folder.name)
        _mask(root / "etc/systemd/system")

    return await cache.ensure("layers", "plain", cache.recipe_key(Path(__file__).read_bytes(), *parts), build)


async def _ensure_stock_config() -> Path:
    files = _IMAGE / "stock"

    async def build(root: Path) -> None:
        trees.copy(files, root, mode=0o755)

    return await cache.ensure(
        "layers", "stock", cache.recipe_key(Path(__file__).read_bytes(), *trees.contents(files)), build
    )


async def ensure_torch_layer(suite: str) -> Path:
    """The layer that `TORCH_PACKAGES` and what they depend on make over the base of a suite."""
    return await _ensure_packages(suite, TORCH, TORCH_PACKAGES)


async def ensure_podman_layer(suite: str) -> Path:
    """The layer that `PODMAN_PACKAGES` and what they depend on make over the base of a suite."""
    return await _ensure_packages(suite, PODMAN, PODMAN_PACKAGES)


async def ensure_oci_image(suite: str, *, torch: bool = False) -> Path:
    """An OCI image with Python in one file, as users of `srun --container` fetch one from a registry.

    Args:
        suite: Debian's.
        torch: it has PyTorch too.
    """
    layers = (await ensure_torch_layer(suite), await ensure_base(suite))
    files = layers if torch else (await ensure_stock(suite),)
    builder = _IMAGE / "build_oci.sh"
    key = cache.recipe_key(*(layer.name for layer in (*files, *layers)), builder.read_bytes())

    async def build(folder: Path) -> None:
        log = cache.log_file(f"oci-{suite}")
        async with step(f"OCI image ({suite} with {'PyTorch' if torch else 'Python'})", log):
            await proc.run(
                in_own_namespaces(["sh", builder, ":".join(map(str, layers)), ":".join(map(str, files)), folder]),
                timeout_s=_BUILD_TIMEOUT_S,
                log=log,
            )

    return await cache.ensure("oci", f"{suite}{TORCH if torch else ''}", key, build) / "image.tar"


async def ensure_crun_layer(suite: str) -> Path:
    """The layer with crun alone, for hosts that only start containers."""
    return await _ensure_packages(suite, "-crun", ("crun",))


async def ensure_s6_layer(suite: str) -> Path:
    """The layer with the packages of a pod that the base of a suite lacks."""
    return await _ensure_packages(suite, "-s6", [name for name in pod_layer.packages() if name not in PACKAGES])


async def ensure_programs_layer(suite: str) -> Path:
    """The layer with `VM_PROGRAMS`, without their packages: dpkg's list is the one of the layers below."""
    base = await ensure_base(suite)
    key = cache.recipe_key(base.name, *VM_PROGRAMS, *VM_PROGRAMS.values())

    async def build(root: Path) -> None:
        log = cache.log_file(f"image-{suite}-programs")
        async with step(f"programs over {suite} ({', '.join(VM_PROGRAMS)})", log):
            debs = await fetch_packages(base, suite, list(VM_PROGRAMS), log)
            with tempfile.TemporaryDirectory(dir=root.parent) as unpacked:
                for name, program in VM_PROGRAMS.items():
                    package = max(debs.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
                    argv: list[str | Path] = ["dpkg-deb", "--extract", package, unpacked]
                    await proc.run(argv, timeout_s=_UNPACK_TIMEOUT_S, log=log)
                    (root / program).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(Path(unpacked) / program, root / program)

    return await cache.ensure("layers", f"{suite}-programs", key, build)


async def ensure_services_layer(suite: str) -> Path:
    """The layer with `HEAD_PACKAGES` over the base of a suite."""
    return await _ensure_packages(suite, "-services", HEAD_PACKAGES, disabled=HEAD_DISABLED)


async def _ensure_packages(suite: str, name: str, packages: Sequence[str], *, disabled: Sequence[str] = ()) -> Path:
    base = await ensure_base(suite)
    builder = _IMAGE / "build_packages.sh"
    key = cache.recipe_key(base.name, builder.read_bytes(), *packages, *disabled)

    async def build(layer: Path) -> None:
        log = cache.log_file(f"image-{suite}{name}")
        async with step(f"packages over {suite} ({', '.join(packages)})", log):
            with tempfile.TemporaryDirectory(dir=layer.parent) as work:
                await _with_apt("build_packages.sh", [base, layer, work, suite], suite, packages, log)
            for unit in disabled:
                (layer / "etc/systemd/system/multi-user.target.wants" / unit).unlink()

    return await cache.ensure("layers", f"{suite}{name}", key, build)


async def fetch_packages(image: Path, suite: str, packages: Sequence[str], log: Path) -> Path:
    """Download packages and what an image lacks of what they need; returns the folder of all packages of the suite.

    Raises:
        CommandError: one could not be downloaded.
    """
    await _with_apt("fetch_packages.sh", [image, suite], suite, packages, log)
    return cache.cache_root() / "debs" / suite


async def _with_apt(builder: str, words: Sequence[str | Path], suite: str, packages: Sequence[str], log: Path) -> None:
    """Run a builder with its own words, then what apt needs, then the packages to install."""
    debs = cache.cache_root() / "debs" / suite
    debs.mkdir(parents=True, exist_ok=True)
    archive, security = debian.mirrors()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write(await debian.apt_settings())
        settings.flush()
        apt: list[str | Path] = [archive, security, debs, settings.name, debian.ca_bundle()]
        # apt locks the folder of packages and does not wait: a layer may be built while another one is.
        async with cache.lock(f"debs-{suite}"):
            await proc.run(
                in_own_namespaces(["sh", _IMAGE / builder, *words, *apt, *packages]),
                timeout_s=_BUILD_TIMEOUT_S,
                env=debian.builder_environment(),
                log=log,
            )


async def _ensure_config(*, tailscaled: bool = True) -> Path:
    """What machines of clouds have besides their packages. `tailscaled`: they have it, and it starts when they boot."""
    files = FILES
    parts = [Path(__file__).read_bytes(), str(tailscaled), *trees.contents(files)]

    async def build(root: Path) -> None:
        trees.copy(files, root)
        units = root / "etc/systemd/system"
        _mask(units)
        if not tailscaled:
            (root / "usr/lib/systemd/system/tailscaled.service").unlink()
            return
        wanted = units / "multi-user.target.wants"
        wanted.mkdir(parents=True)
        (wanted / "tailscaled.service").symlink_to("/usr/lib/systemd/system/tailscaled.service")

    return await cache.ensure("layers", "config", cache.recipe_key(*parts), build)


def _mask(units: Path) -> None:
    units.mkdir(parents=True, exist_ok=True)
    for unit in MASKED:
        (units / unit).symlink_to("/dev/null")


async def _ensure_share() -> Path:
    source = _IMAGE / "share" / "mount_nfs4.c"

    async def build(root: Path) -> None:
        program = root / "usr/sbin/mount.nfs4"
        program.parent.mkdir(parents=True)
        # Static: it runs in images of other Debian releases than the host's.
        strict = ["-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wall", "-Wextra", "-Werror"]
        libraries = ["-lfuse3", "-lpthread", "-ldl"]
        await proc.run(["cc", *strict, "-O2", "-static", "-o", program, source, *libraries], timeout_s=60)
        (root / "var/lib/sandbox").mkdir(parents=True, mode=0o700)
        (root / "var/lib/sandbox/share").mkdir()

    key = cache.recipe_key(Path(__file__).read_bytes(), source.read_bytes())
    return await cache.ensure("layers", "share", key, build)


async def _ensure_nfs_config() -> Path:
    files = _IMAGE / "share" / "head"

    async def build(root: Path) -> None:
        trees.copy(files, root)
        for unit in NFS_MASKED:
            (root / "etc/systemd/system" / unit).symlink_to("/dev/null")

    key = cache.recipe_key(Path(__file__).read_bytes(), *trees.contents(files))
    return await cache.ensure("layers", "nfs", key, build)


async def _ensure_hardware() -> Path:
    files, shift = _IMAGE / "hardware", _IMAGE / "clockshift.c"
    parts = [Path(__file__).read_bytes(), shift.read_bytes(), _NVIDIA_SMI_OUTPUT.read_bytes(), *trees.contents(files)]

    async def build(root: Path) -> None:
        trees.copy(files, root)
        data = root / "usr/share/sandbox"
        data.mkdir(parents=True)
        shutil.copyfile(_NVIDIA_SMI_OUTPUT, data / "nvidia-smi-q.xml")
        library = root / "usr/lib/sandbox"
        library.mkdir(parents=True)
        await proc.run(["cc", "-O2", "-shared", "-fPIC", "-o", library / "clockshift.so", shift, "-ldl"], timeout_s=60)

    return await cache.ensure("layers", "hardware", cache.recipe_key(*parts), build)


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


async def ensure_mlflow_layer() -> Path:
    """The layer with /opt/meshd-mlflow/venv, as MLflow's installer makes it."""
    base, builder, install = await ensure_base("trixie"), _IMAGE / "build_mlflow.sh", _MLFLOW / "install"
    lock = _MLFLOW / "requirements.txt"
    key = cache.recipe_key(base.name, builder.read_bytes(), lock.read_bytes(), install.read_bytes())

    async def build(layer: Path) -> None:
        log = cache.log_file("image-mlflow")
        store = cache.cache_root() / "wheels-mlflow"
        store.mkdir(parents=True, exist_ok=True)
        async with step("head image (MLflow)", log):
            await wheels.download(["--require-hashes", "--requirement", str(lock)], store, base, log)
            (layer / "opt").mkdir()
            await proc.run(
                in_own_namespaces(["sh", builder, base, layer / "opt", store, _MLFLOW]),
                timeout_s=_PIP_TIMEOUT_S,
                env=debian.builder_environment(),
                log=log,
            )

    return await cache.ensure("layers", "mlflow", key, build)


async def ensure_wheels_layer() -> Path:
    """The layer with `USER_WHEELS`, from which pip takes packages there: machines do not reach PyPI."""
    base = await ensure_base("trixie")
    folder = "usr/share/sandbox/wheels"
    key = cache.recipe_key(base.name, folder, *USER_WHEELS)

    async def build(layer: Path) -> None:
        log = cache.log_file("image-wheels")
        async with step(f"wheels for users ({', '.join(USER_WHEELS)})", log):
            (layer / folder).mkdir(parents=True)
            await wheels.download(USER_WHEELS, layer / folder, base, log)
            (layer / "etc").mkdir()
            (layer / "etc/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = /{folder}\n")

    return await cache.ensure("layers", "wheels", key, build)
