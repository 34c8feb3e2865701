"""The node API on the head's tailnet address, for as long as the daemon lives."""

from __future__ import annotations

import os
import pwd

from meshd.api.host_handlers import HostHandlers
from meshd.api.node_api import NodeApi
from meshd.config import Settings
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.nodes.service import HeadFacts, NodeService
from meshd.errors import MungeError
from meshd.runtime.clock import Clock
from meshd.tailnet.watcher import TailnetWatcher

LOOK_INTERVAL_S = 1.0


class NodeApiServer:
    """Serves the node API, and moves with the head's address.

    Args:
        live: the settings; an address that is set there holds against the tailnet's.
        tailnet: knows the head's address.
        service: what answers.
        clock: time.
        hosts: what answers owned machines.
    """

    def __init__(
        self,
        live: LiveSettings,
        tailnet: TailnetWatcher,
        service: NodeService,
        clock: Clock,
        hosts: HostHandlers | None = None,
    ) -> None:
        self._hosts = hosts
        self._live = live
        self._tailnet = tailnet
        self._service = service
        self._clock = clock

    async def run(self) -> None:
        """Serve until cancelled."""
        settings, serving, api = self._live.settings.node_api, "", None
        try:
            while True:
                own = self._tailnet.head_tailnet_ip
                address = settings.address or own
                if address and address != serving:
                    if api is not None:
                        await api.stop()
                    self._service.head = head_facts(self._live.settings, own or address)
                    api = NodeApi(self._service, poll_hold_s=settings.poll_hold_s, clock=self._clock, hosts=self._hosts)
                    await api.start(address, settings.port)
                    serving = address
                await self._clock.sleep(LOOK_INTERVAL_S)
        finally:
            if api is not None:
                await api.stop()


def head_facts(settings: Settings, head_ip: str) -> HeadFacts:
    """What nodes must know about the head. meshd runs as SlurmUser, so its own user is Slurm's.

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
