"""Makes each machine's user data from what is current: the auth key, its token, the head's address."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshd.bootstrap.assets import agent_sha256, stage1_template
from meshd.bootstrap.stage1 import Stage1, render
from meshd.config import Settings
from meshd.daemon.cloud_steps import UserData
from meshd.daemon.tokens import MachineTokens
from meshd.errors import TailnetError
from meshd.model.machine import Machine
from meshd.model.observed import Fresh, Observation, TailnetView
from meshd.provider_api import Provider
from meshd.tailnet.keys import AuthKeySource
from meshd.tailnet.keystore import sha256_of


class Stage1Maker:
    """The Stage1Source of the daemon."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        keys: AuthKeySource,
        tokens: MachineTokens,
        tailnet: Callable[[], Observation[TailnetView]],
        providers: Mapping[str, Provider],
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._tokens = tokens
        self._tailnet = tailnet
        self._providers = providers

    async def user_data(self, machine: Machine) -> UserData:
        """Stage 1 for this machine."""
        settings, seen = self._settings(), self._tailnet()
        if not isinstance(seen, Fresh) or not seen.value.self_ipv4:
            raise TailnetError("the head is not on the tailnet itself: run `tailscale up` on it")
        auth_key = await self._keys.current()
        text = render(
            Stage1(
                machine=machine.name,
                heads=(settings.node_api.address or seen.value.self_ipv4,),
                port=settings.node_api.port,
                auth_key=auth_key,
                join_token=self._tokens.join_token(machine.name),
                agent_sha256=agent_sha256(),
                login_server=settings.tailnet.login_server,
                accept_dns=settings.tailnet.accept_dns,
                dead_man_s=settings.timing.dead_man_s,
                power_off=self._providers[machine.provider].capabilities.ends_itself,
            ),
            stage1_template(),
        )
        return UserData(text, sha256_of(auth_key))
