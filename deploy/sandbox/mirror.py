"""An archive of Debian packages inside a sandbox, for machines whose image lacks what a node needs.

It answers by the names of Debian's archive and of tailscale's, which the machine's /etc/hosts leads here. It has what
the stock images of pods and the plain images lack, and nothing else. It is not signed: the image's list of sources
trusts it.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import platform
import shutil
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deploy.sandbox import cache, gotools, images, proc
from deploy.sandbox.network import GATEWAY, Network
from deploy.sandbox.progress import step

DEBIAN = "deb.debian.org"
TAILSCALE = "pkgs.tailscale.com"
PACKAGES = (
    *("ca-certificates", "gcc", "libc6-dev", "make", "munge", "python3", "rsync", "s6", "slurm-client", "slurmd"),
    "xz-utils",
)
"""What stage 1 and the node agent may install; tailscale is made here, of the binaries that other machines have."""

_SCRIPTS = {
    "postinst": """\
#!/bin/sh
set -e
[ "$1" != configure ] || [ ! -x /usr/bin/deb-systemd-helper ] || {
    deb-systemd-helper unmask tailscaled.service >/dev/null
    deb-systemd-helper enable tailscaled.service >/dev/null
    [ ! -d /run/systemd/system ] || { systemctl daemon-reload; deb-systemd-invoke start tailscaled.service >/dev/null; }
}
""",
    "prerm": """\
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || deb-systemd-invoke stop tailscaled.service >/dev/null
""",
    "postrm": """\
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
[ "$1" != purge ] || {
    [ ! -x /usr/bin/deb-systemd-helper ] || deb-systemd-helper purge tailscaled.service >/dev/null
    rm -rf /var/lib/tailscale
}
""",
}
"""What the scripts of tailscale's own package do."""
_UNIT = "usr/lib/systemd/system/tailscaled.service"

_CONTROL = """\
Package: tailscale
Version: {version}
Architecture: {arch}
Maintainer: sandbox <sandbox@example.net>
Description: tailscale, as the sandbox builds it
"""
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
_TOOL_TIMEOUT_S = 120.0


async def ensure_mirror(suite: str) -> Path:
    """A folder with the archives of one suite: `debian`, and `stable/debian` for tailscale.

    Raises:
        CommandError: a package could not be downloaded or built.
    """
    bases = await images.ensure_stock(suite), await images.ensure_plain(suite)
    tailscale = await gotools.ensure_tailscale()
    key = cache.recipe_key(Path(__file__).read_bytes(), *(base.name for base in bases), tailscale.name)

    async def build(root: Path) -> None:
        log = cache.log_file(f"mirror-{suite}")
        async with step(f"packages for {suite} ({', '.join(PACKAGES)})", log):
            for base in bases:
                debs = await images.fetch_packages(base, suite, PACKAGES, log)
            await _fill(root / "debian", suite, debs)
            await _pack_tailscale(tailscale, root / "stable/debian/pool")
            await write_lists(root / "stable/debian", suite)
        (root / f"stable/debian/{suite}.noarmor.gpg").write_bytes(b"")
        source = f"deb [trusted=yes] https://{TAILSCALE}/stable/debian {suite} main\n"
        (root / f"stable/debian/{suite}.tailscale-keyring.list").write_text(source)

    return await cache.ensure("mirrors", suite, key, build)


async def ensure_archive(suite: str, packages: Sequence[str]) -> Path:
    """A folder with the archive `debian` of one suite: packages, and what a head lacks of what they need.

    Raises:
        CommandError: a package could not be downloaded.
    """
    base = await images.ensure_base(suite)
    key = cache.recipe_key(Path(__file__).read_bytes(), base.name, *packages)

    async def build(root: Path) -> None:
        log = cache.log_file(f"archive-{suite}")
        async with step(f"packages for heads ({', '.join(packages)})", log):
            debs = await images.fetch_packages(base, suite, packages, log)
            await _fill(root / "debian", suite, debs)

    return await cache.ensure("mirrors", f"{suite}-head", key, build)


async def _fill(archive: Path, suite: str, debs: Path) -> None:
    pool = archive / "pool"
    pool.mkdir(parents=True)
    for deb in sorted(debs.glob("*.deb")):
        os.link(deb, pool / deb.name)
    await write_lists(archive, suite)


async def _pack_tailscale(binaries: Path, pool: Path) -> None:
    pool.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tailscale"
        shutil.copytree(binaries, tree, symlinks=True)
        (tree / "DEBIAN").mkdir()
        for name, script in _SCRIPTS.items():
            (tree / "DEBIAN" / name).write_text(script)
            (tree / "DEBIAN" / name).chmod(0o755)
        (tree / _UNIT).parent.mkdir(parents=True)
        shutil.copyfile(images.FILES / _UNIT, tree / _UNIT)
        text = _CONTROL.format(version=gotools.TAILSCALE_VERSION, arch=_ARCH[platform.machine()])
        (tree / "DEBIAN/control").write_text(text)
        tree.chmod(0o755)
        await proc.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, pool], timeout_s=_TOOL_TIMEOUT_S)


async def write_lists(archive: Path, suite: str) -> None:
    """Write the lists of an archive whose packages are in its `pool`."""
    few, packages = asyncio.Semaphore(4), sorted((archive / "pool").glob("*.deb"))
    paragraphs = await asyncio.gather(*(_paragraph(archive, package, few) for package in packages))
    arch = _ARCH[platform.machine()]
    lists = archive / f"dists/{suite}"
    folder = lists / f"main/binary-{arch}"
    folder.mkdir(parents=True)
    text = "".join(paragraphs).encode()
    (folder / "Packages").write_bytes(text)
    (folder / "Packages.gz").write_bytes(gzip.compress(text, mtime=0))
    sums = "".join(
        f" {_sha256(path)} {path.stat().st_size} {path.relative_to(lists)}\n" for path in sorted(folder.iterdir())
    )
    (lists / "Release").write_text(
        f"Suite: {suite}\nCodename: {suite}\nArchitectures: {arch}\nComponents: main\n"
        f"Date: {datetime.now(UTC):%a, %d %b %Y %H:%M:%S} UTC\nSHA256:\n{sums}"
    )


async def _paragraph(archive: Path, deb: Path, few: asyncio.Semaphore) -> str:
    async with few:
        told = await proc.run(["dpkg-deb", "--field", deb], timeout_s=_TOOL_TIMEOUT_S)
    return (
        f"{told.text.strip()}\nFilename: {deb.relative_to(archive)}\nSize: {deb.stat().st_size}\n"
        f"SHA256: {_sha256(deb)}\n\n"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def names() -> dict[str, str]:
    """What a machine's /etc/hosts says of the archives: the address of each name."""
    return dict.fromkeys((DEBIAN, TAILSCALE), GATEWAY)


@lru_cache(maxsize=1)
def certificate() -> tuple[str, str]:
    """A self-signed certificate for both names, and its key, in PEM: the same for the whole process."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sandbox")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(map(x509.DNSName, (DEBIAN, TAILSCALE))), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(serialization.Encoding.PEM).decode(), key.private_bytes(*form).decode()


class Mirror:
    """The server of the archives, while the context lasts.

    Args:
        network: where it listens, on the gateway's ports 80 and 443.
        folder: as `ensure_mirror` gives it.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._stack = AsyncExitStack()
        self.asked: list[str] = []
        """Paths of the calls so far."""

    async def __aenter__(self) -> Self:
        """Start to listen."""
        runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, self._network.listen(80)).start()
        await web.SockSite(runner, self._network.listen(443), ssl_context=_context()).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        await self._stack.aclose()

    def _app(self) -> web.Application:
        @web.middleware
        async def note(request: web.Request, handler: object) -> web.StreamResponse:
            self.asked.append(request.path)
            answer = await handler(request)  # type: ignore[operator]
            assert isinstance(answer, web.StreamResponse)
            return answer

        app = web.Application(middlewares=[note])
        app.router.add_static("/", self._folder)
        return app


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write("".join(certificate()))
        file.flush()
        context.load_cert_chain(file.name)
    return context
