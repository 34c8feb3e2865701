"""The node API on the head's tailnet address, for as long as the daemon lives."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable

from meshd.api.node_api import NodeApi
from meshd.api.node_handlers import NodeHandlers
from meshd.config import NodeApiSettings, Settings
from meshd.daemon.nodes.service import HeadFacts
from meshd.errors import MungeError
from meshd.runtime.clock import Clock

LOOK_INTERVAL_S = 1.0


class NodeApiServer:
    """Serves the node API, and moves with the head's address.

    Args:
        settings: of the node API; an address that is set there holds against the tailnet's.
        head_tailnet_ip: the head's tailnet address, "" when not known.
        desk: what answers, made for the address under which nodes reach the head.
        clock: time.
    """

    def __init__(
        self,
        settings: NodeApiSettings,
        head_tailnet_ip: Callable[[], str],
        desk: Callable[[str], NodeHandlers],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._head_tailnet_ip = head_tailnet_ip
        self._desk = desk
        self._clock = clock

    async def run(self) -> None:
        """Serve until cancelled."""
        serving, api = "", None
        try:
            while True:
                own = self._head_tailnet_ip()
                address = self._settings.address or own
                if address and address != serving:
                    if api is not None:
                        await api.stop()
                    hold_s = self._settings.poll_hold_s
                    api = NodeApi(self._desk(own or address), poll_hold_s=hold_s, clock=self._clock)
                    await api.start(address, self._settings.port)
                    serving = address
                await self._clock.sleep(LOOK_INTERVAL_S)
        finally:
            if api is not None:
                await api.stop()


def head_facts(settings: Settings, head_ip: str) -> HeadFacts:
    """What nodes are told about the head. meshd runs as SlurmUser, so that its own user is theirs.

    Raises:
        MungeError: the head has no user munge.
    """
    slurm = pwd.getpwuid(os.getuid())
    try:
        munge = pwd.getpwnam("munge")
    except KeyError:
        raise MungeError("the head has no user munge: apt-get install munge") from None
    return HeadFacts(
        cluster=settings.cluster.name, conf_server=f"{head_ip}:{settings.slurm.slurmctld_port}",
        slurm_uid=slurm.pw_uid, slurm_gid=slurm.pw_gid, munge_uid=munge.pw_uid, munge_gid=munge.pw_gid,
        packages=settings.node_api.packages, poll_hold_s=settings.node_api.poll_hold_s,
    )  # fmt: skip
