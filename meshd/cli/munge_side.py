"""What `meshctl init` does about munge: make a key where there is none, never touch one that is there."""

from __future__ import annotations

import os
from pathlib import Path

from meshd.errors import MungeError
from meshd.munge.key import check_permissions, fingerprint, make_key, write_key
from meshd.runtime.rootfs import RootFs

OWNER = "munge"


def missing(path: Path) -> bool:
    """There is no key, so one has to be made.

    Raises:
        MungeError: there is one, but munged refuses it; the text has the cure.
    """
    if not path.exists():
        return True
    check_permissions(path)
    return False


def make(path: Path, fs: RootFs) -> str:
    """Make the key and give it to munge's user; returns its fingerprint.

    Args:
        path: where on this machine.
        fs: whose users count.

    Raises:
        MungeError: it cannot be put in place.
    """
    uid, gid = owner(fs)
    key = make_key()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_key(path, key)
        # Who owns the directory could lay a link there meanwhile.
        os.chown(path, uid, gid, follow_symlinks=False)
        os.chown(path.parent, uid, gid, follow_symlinks=False)
    except OSError as error:
        raise MungeError(f"the munge key {path} cannot be written: {error.strerror}") from error
    return fingerprint(key)


def owner(fs: RootFs) -> tuple[int, int]:
    """The numbers of munge's user and group.

    Raises:
        MungeError: there is no such user.
    """
    try:
        return fs.ids(OWNER)
    except (KeyError, OSError):
        raise MungeError(f"there is no user {OWNER} (install munge on the head)") from None
