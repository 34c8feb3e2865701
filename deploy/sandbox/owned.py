"""A machine that somebody owns: no cloud knows it, and it is behind NAT on a network of its own, as one at home is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from deploy.sandbox import mirror, proc
from deploy.sandbox.hypervisor import MachineSpec, Owned
from deploy.sandbox.images import PLAIN
from deploy.sandbox.world import World

BOOT_TIMEOUT_S = 90.0
SSH = 22
CHANGES_BY_ITSELF = (
    "proc", "sys", "dev", "run", "tmp", "var/tmp", "var/log", "var/cache",
)  # fmt: skip
"""What a manifest leaves out: no reboot leaves the first ones; logs and caches are everybody's."""

_LOOK = r"""
cd /
set -f
skip=$(printf ' -path ./%s -prune -o' "$@")
find . -xdev $skip -printf '%P\t%y\t%m\t%U\t%G\t%l\n' | sort
echo ==
find . -xdev $skip -type f -print0 | xargs -0 sha256sum
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is at a path: kind (as find's %y), rights, owner, where a link leads, the SHA-256 of a file."""

    kind: str
    mode: str
    uid: str
    gid: str
    to: str
    sha256: str = ""


class OwnedMachine:
    """One such machine of a world, once `boot` has ended.

    Args:
        world: the sandbox.
        name: its host name, and the sandbox's name for it.
        gpus: how many it has.
        suite: its Debian.
        ssh: its router lets ssh in.
    """

    def __init__(self, world: World, name: str, *, gpus: int = 1, suite: str = "trixie", ssh: bool = False) -> None:
        self._world = world
        self.name = name
        self._spec = MachineSpec(
            name=name, user_data="", image=f"{suite}{PLAIN}", gpus=gpus,
            owned=Owned(
                names=mirror.names(), certificate=mirror.certificate()[0], ports={SSH: SSH} if ssh else {}
            ),
        )  # fmt: skip

    async def boot(self) -> None:
        """Start it and wait until systemd is through. Raises TimeoutError."""
        await self._world.hypervisor.boot(self._spec)
        await self.booted()

    async def booted(self) -> None:
        """Wait until systemd is through. Raises TimeoutError."""
        state = ""
        async with asyncio.timeout(BOOT_TIMEOUT_S):
            while state not in {"running", "degraded"}:
                await asyncio.sleep(0.1)
                state = (await self.run("systemctl", "is-system-running", "--wait", check=False)).text

    async def run(self, *argv: str, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True) -> proc.Result:
        """Run a program on it as root."""
        return await self._world.hypervisor.run(self.name, argv, stdin=stdin, timeout_s=timeout_s, check=check)

    async def redeem(self, script: str, timeout_s: float = 300.0) -> proc.Result:
        """Run an invitation's script as its owner does, as the input of a shell."""
        return await self.run("sh", stdin=script.encode(), timeout_s=timeout_s, check=False)

    async def boot_id(self) -> str:
        """Changes with each boot: when its first process began. "" between two boots."""
        try:
            result = await self.run("cut", "-d ", "-f22", "/proc/1/stat", timeout_s=10, check=False)
        except (RuntimeError, OSError):
            return ""
        return result.text if result.returncode == 0 else ""

    @property
    def address(self) -> str:
        """Its router's, where ssh comes in. Raises KeyError before it was booted."""
        return self._world.hypervisor.address(self.name)

    def pause(self) -> None:
        """Let it sleep."""
        self._world.hypervisor.pause(self.name)

    def resume(self) -> None:
        """Wake it."""
        self._world.hypervisor.resume(self.name)

    async def destroy(self) -> None:
        """Remove it."""
        await self._world.hypervisor.destroy(self.name)

    async def manifest(self) -> dict[str, Entry]:
        """All files of its disk but those that change by themselves (`CHANGES_BY_ITSELF`), by path."""
        text = (await self.run("sh", "-c", _LOOK, "look", *CHANGES_BY_ITSELF, timeout_s=120)).text
        entries, _, sums = text.partition("==\n")
        digests = {
            path.removeprefix("./"): digest for digest, _, path in (row.partition("  ") for row in sums.split("\n"))
        }
        found = {}
        for row in entries.splitlines():
            path, *rest = row.split("\t")
            if path and len(rest) == 5:
                kind, mode, uid, gid, to = rest
                found[path] = Entry(kind, mode, uid, gid, to, digests.get(path, ""))
        return found


def differences(before: dict[str, Entry], after: dict[str, Entry]) -> dict[str, str]:
    """What differs between two manifests, in words, by path."""
    found = {}
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old is None:
            found[path] = f"new: {new}"
        elif new is None:
            found[path] = f"gone: {old}"
        elif old != new:
            found[path] = f"{old} -> {new}"
    return found
