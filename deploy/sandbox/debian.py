"""Debian on the host: which mirror and which settings the host uses, so that images are fetched the same way."""

from __future__ import annotations

import os
import re
from pathlib import Path

from deploy.sandbox import proc

_DEFAULT_MIRROR = "http://deb.debian.org/debian"
_DEFAULT_SECURITY = "http://deb.debian.org/debian-security"
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
# What reaches builders from the caller's environment: the way to the network, nothing else.
_NETWORK_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def mirrors(etc_apt: Path = Path("/etc/apt")) -> tuple[str, str]:
    """The archive and the security archive that the host's apt uses; Debian's own where it names none.

    $MESHD_DEBIAN_MIRROR overrides the first.
    """
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    text = "\n".join(
        file.read_text(errors="replace") for file in files if file.is_file() and file.suffix in {".list", ".sources"}
    )
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = [url.rstrip("/") for url in re.findall(r"\bhttps?://\S+", lines)]
    archive = next((url for url in found if url.endswith("/debian")), _DEFAULT_MIRROR)
    security = next((url for url in found if url.endswith("/debian-security")), _DEFAULT_SECURITY)
    return os.environ.get("MESHD_DEBIAN_MIRROR") or archive, security


def builder_environment() -> dict[str, str]:
    """The environment of an image's build: clean but for the caller's proxies."""
    kept = {name: os.environ[name] for name in _NETWORK_VARIABLES if name in os.environ}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **kept}


def ca_bundle() -> Path:
    """The file of certificates that the host trusts (it may not exist)."""
    return _CA_BUNDLE


async def apt_settings() -> str:
    """The host's apt settings about fetching (proxies, time-outs, certificates), as lines of an apt.conf."""
    dump = await proc.run(["apt-config", "dump"], timeout_s=30)
    lines = [line for line in dump.text.splitlines() if re.match(r"Acquire::(?!Changelogs)", line)]
    # Paths of the host mean nothing inside the new root, where its certificates lie at one known place.
    lines = [line for line in lines if "CAInfo" not in line]
    if _CA_BUNDLE.is_file():
        lines.append('Acquire::https::CAInfo "/run/ca-host.crt";')
    return "\n".join(lines) + "\n"
