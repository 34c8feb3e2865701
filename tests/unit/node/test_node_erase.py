"""Copies of secrets on a machine: what is spent is erased, the rest is root's alone; one that leaves keeps nothing."""

from __future__ import annotations

from pathlib import Path

from deploy.node.meshd_node import erase
from deploy.node.meshd_node.paths import Paths

STAGE1 = "#!/bin/sh\nETC=/etc/meshd-node\nprintf '%s' tskey-auth-x\n"


def put(root: Path, name: str, text: str, mode: int = 0o600) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_cloud_inits_copies_of_stage_1_are_erased_and_others_stay(tmp_path: Path) -> None:
    spent = [
        put(tmp_path, "var/lib/cloud/instances/i-1/user-data.txt", STAGE1),
        put(tmp_path, "var/lib/cloud/instances/i-1/user-data.txt.i", "base64 of it"),
        put(tmp_path, "var/lib/cloud/instances/i-1/scripts/part-001", STAGE1, 0o700),
    ]
    others = [
        put(tmp_path, "var/lib/cloud/instances/i-1/vendor-data.txt", "#cloud-config\n"),
        put(tmp_path, "var/lib/cloud/instances/i-1/boot-finished", ""),
        put(tmp_path, "var/lib/cloud/instances/owners/user-data.txt", "#cloud-config\n"),
        put(tmp_path, "var/lib/cloud/instances/owners/user-data.txt.i", "base64 of it"),
    ]
    world = put(tmp_path, "run/cloud-init/instance-data.json", f'{{"userdata": "{STAGE1}"}}', 0o644)
    plain = put(tmp_path, "run/cloud-init/status.json", "{}", 0o644)
    cache = put(tmp_path, "var/lib/cloud/instances/i-1/obj.pkl", STAGE1, 0o644)
    assert sorted(erase.erase_stage1_copies(Paths(tmp_path))) == sorted(spent)
    assert not any(path.exists() for path in spent)
    assert all(path.exists() for path in others)
    modes = [path.stat().st_mode & 0o777 for path in (world, plain, cache)]
    assert modes == [0o600, 0o644, 0o600], "cloud-init's cache is needed at the next boot"


def test_a_link_out_of_cloud_inits_folder_is_not_followed(tmp_path: Path) -> None:
    outside = put(tmp_path, "home/user/scripts", STAGE1)
    folder = tmp_path / "var/lib/cloud/instances/i-1/scripts"
    folder.mkdir(parents=True)
    (folder / "part-001").symlink_to(outside)
    assert erase.erase_stage1_copies(Paths(tmp_path)) == []
    assert outside.exists()


def test_one_that_leaves_keeps_no_key(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for path in (paths.munge_key, paths.munge_key_staged, paths.munge_key_previous, paths.auth_key, paths.spare_key,
                 paths.auth_key_once):  # fmt: skip
        put(tmp_path, str(path.relative_to(tmp_path)), "secret")
    put(tmp_path, "etc/munge/.munge.key.12.34", "half written")
    put(tmp_path, "etc/meshd-node/join.json", "{}")
    assert len(erase.erase_secrets(paths)) == 6
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["join.json"]
    assert erase.erase_secrets(paths) == [], "again"
