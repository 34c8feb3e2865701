"""What `meshctl init` does about munge: make a key where there is none, never touch one that is there."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from meshd.errors import MungeError
from meshd.munge.key import check_permissions, fingerprint, make_key, write_key

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


def make(path: Path) -> str:
    """Make the key and give it to munge's user; returns its fingerprint.

    Raises:
        MungeError: it cannot be put in place.
    """
    key = make_key()
    try:
        owner = pwd.getpwnam(OWNER)
    except KeyError:
        raise MungeError(f"there is no user {OWNER} (install munge on the head)") from None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_key(path, key)
        os.chown(path, owner.pw_uid, owner.pw_gid)
        os.chown(path.parent, owner.pw_uid, owner.pw_gid)
    except OSError as error:
        raise MungeError(f"the munge key {path} cannot be written: {error.strerror}") from error
    return fingerprint(key)
