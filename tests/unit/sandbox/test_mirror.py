"""The archive of packages inside a sandbox."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from cryptography import x509

from deploy.sandbox import mirror, proc
from deploy.sandbox.clouds.runpod_pods import image_kind, pod_of
from deploy.sandbox.network import GATEWAY

CONTROL = "Package: tool\nVersion: 1.0\nArchitecture: all\nMaintainer: m <m@example.net>\nDescription: a tool\n"


async def test_the_lists_name_each_package_with_its_digest(tmp_path: Path) -> None:
    tree, pool = tmp_path / "tree", tmp_path / "archive/pool"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(CONTROL)
    pool.mkdir(parents=True)
    await proc.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, pool], timeout_s=30)
    (package,) = pool.iterdir()

    await mirror.write_lists(tmp_path / "archive", "trixie")

    lists = tmp_path / "archive/dists/trixie"
    (folder,) = (lists / "main").iterdir()
    text = (folder / "Packages").read_text()
    assert gzip.decompress((folder / "Packages.gz").read_bytes()).decode() == text
    rows = dict(line.split(": ", 1) for line in text.splitlines() if line)
    assert (rows["Package"], rows["Filename"]) == ("tool", f"pool/{package.name}")
    assert rows["SHA256"] == hashlib.sha256(package.read_bytes()).hexdigest()
    release = (lists / "Release").read_text()
    assert hashlib.sha256((folder / "Packages").read_bytes()).hexdigest() in release


def test_the_certificate_is_for_the_archives_names() -> None:
    made = x509.load_pem_x509_certificate(mirror.certificate()[0].encode())
    alternatives = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(alternatives.get_values_for_type(x509.DNSName)) == {mirror.DEBIAN, mirror.TAILSCALE}


@pytest.mark.parametrize(("image", "stock"), [("runpod/pytorch:1.0", True), ("meshd/pod", False), ("me/runpod", False)])
def test_runpods_own_images_get_their_packages_from_the_archive(image: str, stock: bool) -> None:
    body = {"image": image, "gpu": {"id": "NVIDIA A40"}}
    pod = pod_of(body, pod_id="p1", place="US-KS-2", gpus=1, api_key="k")
    assert image_kind(image) == ("-stock-pod" if stock else "-pod")
    assert set(pod.names.values()) == ({GATEWAY} if stock else set())
    assert pod.certificate.startswith("-----BEGIN CERTIFICATE-----") is stock
