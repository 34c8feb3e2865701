"""A cloud in a box: one network, one tailnet and real machines, all of it gone without a trace afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.sandbox import gotools, images, proc
from deploy.sandbox.cgroup import MachineGroups
from deploy.sandbox.images import MachineImage
from deploy.sandbox.network import Network
from deploy.sandbox.nspawn import NspawnHypervisor, leader_of
from deploy.sandbox.presence import STATE_ROOT, shared_folders
from deploy.sandbox.processes import PidFolder, ProcessId, wait_gone
from deploy.sandbox.tailnet import Tailnet

EXPORTED = ("/home", "/srv/data")
"""What the head has of the share, at these paths."""
_SHARE_SIZE = "4g"
_ID = re.compile(r"[a-z0-9]{1,12}")
_GONE_TIMEOUT_S = 10.0


class World:
    """One sandbox, as an async context manager. Several may exist at once, each under its own id.

    Args:
        sandbox_id: 1 to 12 letters and digits.
        auth_key: secret of a tailnet auth key that is good from the start; None: keys are minted by the API only.
        image: finds an image by name; None stands for the cache (`images.image_by_name`).

    Attributes:
        network: the bridge and the machines' ports; `network.listen` opens a server's socket inside.
        tailnet: the control server.
        hypervisor: the machines.
        state: directory of this sandbox's files.
        share: the files that the head exports: its /home and /srv/data.
    """

    def __init__(
        self,
        sandbox_id: str,
        *,
        auth_key: str | None = None,
        image: Callable[[str], Awaitable[MachineImage]] | None = None,
    ) -> None:
        self._id = _checked(sandbox_id)
        self._auth_key = auth_key
        self.state = STATE_ROOT / sandbox_id
        self.network = Network(sandbox_id)
        self._groups = MachineGroups(sandbox_id, self.state / "cgroup")
        self.share = self.state / "share"
        self.hypervisor = NspawnHypervisor(
            self.network, self._groups, self.state, image or images.image_by_name, share=self.share
        )
        self.tailnet = Tailnet(self.network, Path("/nonexistent"), self.state, auth_key)
        self._shared = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        """Bring it up, after removing what a run that crashed left under the same id.

        Raises:
            RuntimeError: a sandbox of this id is in use.
        """
        binary = await gotools.ensure_control()
        owner = _owner(self.state)
        if owner and owner.alive():
            raise RuntimeError(f"sandbox {self._id!r} is in use by process {owner.pid}")
        self._shared.enter_context(shared_folders())
        try:
            await self.down(self._id)
            self.state.mkdir(parents=True, mode=0o700)
            PidFolder(self.state / "owner").record("owner", os.getpid())
            self.tailnet = Tailnet(self.network, binary, self.state, self._auth_key)
            await self._make_share()
            await self._groups.up()
            await self.network.up()
            await self.tailnet.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy all machines and everything else."""
        await self._close()

    @staticmethod
    async def down(sandbox_id: str) -> None:
        """Remove every trace of a sandbox, also of one whose process crashed. Unknown ids are ignored.

        Only processes that the sandbox recorded are ended, and only while pid and start time are those recorded.
        """
        with shared_folders():
            await World._down(STATE_ROOT / _checked(sandbox_id), sandbox_id)

    @staticmethod
    async def _down(state: Path, sandbox_id: str) -> None:
        groups = MachineGroups(sandbox_id, state / "cgroup")
        if state.is_dir():
            recorded = PidFolder(state / "pids").recorded()
            leaders = [
                ProcessId.of(pid) for pid in (leader_of(process.pid) for process in recorded if process.alive()) if pid
            ]
            # A machine's first process goes first: all others of the machine end with it.
            doomed = [leader for leader in leaders if leader] + recorded
            for process in doomed:
                process.kill()
            await asyncio.gather(*(wait_gone(process, _GONE_TIMEOUT_S) for process in doomed))
            await groups.up()
        await groups.down()
        await Network(sandbox_id).down()
        await _unmount_below(state)
        shutil.rmtree(state, ignore_errors=True)

    async def _make_share(self) -> None:
        """In memory, as the machines' disks are. It goes with all that is mounted below `state`."""
        self.share.mkdir()
        options = f"mode=0755,size={_SHARE_SIZE}"
        await proc.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.share], timeout_s=10)
        for path in EXPORTED:
            (self.share / path.lstrip("/")).mkdir(parents=True)

    async def _close(self) -> None:
        # Shielded: a second Ctrl-C must not leave half of it behind.
        await asyncio.shield(asyncio.ensure_future(self._tear_down()))

    async def _tear_down(self) -> None:
        with self._shared:
            await self.hypervisor.aclose()
            await self.tailnet.stop()
            await self.down(self._id)


def _checked(sandbox_id: str) -> str:
    if not _ID.fullmatch(sandbox_id):
        raise ValueError(f"a sandbox's id is 1 to 12 letters and digits, not {sandbox_id!r}")
    return sandbox_id


def _owner(state: Path) -> ProcessId | None:
    return next(iter(PidFolder(state / "owner").recorded()), None)


async def _unmount_below(folder: Path) -> None:
    """Unmount whatever is mounted below a directory in the host's own mount namespace."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True):
        await proc.run(["umount", "-l", point], timeout_s=10, check=False)
