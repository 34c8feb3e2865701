"""Makes each machine's user data from what is current: the auth key, its token, the head's address."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshd.bootstrap.assets import agent_sha256, stage1_template
from meshd.bootstrap.stage1 import Stage1, render
from meshd.daemon.auth_key.machine_keys import MachineKeys
from meshd.daemon.auth_key.ports import KeyPorts
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machines.create_calls import UserData
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.daemon.observe.source import Observed
from meshd.errors import TailnetError
from meshd.model.host import PROVIDER
from meshd.model.machine import Machine
from meshd.model.observed import Fresh, TailnetView
from meshd.provider_api import Provider
from meshd.tailnet.keystore import sha256_of


class UserDataMaker:
    """The UserDataSource of the daemon.

    Args:
        live: the settings.
        keys: the reusable key, and which provider's machines get it.
        machine_keys: keys for one machine each.
        tokens: join tokens.
        tailnet: the head's view.
        providers: what their machines can do.
        is_ours: whether meshd logged the device of a machine's host in.
        bake_script: the user data of a machine from which an image is made.
    """

    def __init__(
        self,
        live: LiveSettings,
        keys: KeyPorts,
        machine_keys: MachineKeys,
        tokens: MachineTokens,
        tailnet: Observed[TailnetView],
        providers: Mapping[str, Provider],
        is_ours: Callable[[Machine], bool] = lambda _: False,
        bake_script: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._live = live
        self._keys = keys
        self._machine_keys = machine_keys
        self._tokens = tokens
        self._tailnet = tailnet
        self._providers = providers
        self._is_ours = is_ours
        self._bake_script = bake_script

    async def user_data(self, machine: Machine) -> UserData:
        """Stage 1 for this machine, or for all machines of its gang. A host fetches what it needs itself."""
        if machine.provider == PROVIDER:
            return UserData("", own_key=self._is_ours(machine))
        if machine.baking:  # it never joins: its script has no secret
            return UserData(self._bake_script(machine.name))
        settings, seen = self._live.settings, self._tailnet.current
        if not isinstance(seen, Fresh) or not seen.value.self_tailnet_ip:
            raise TailnetError("the head is not on the tailnet itself: run `tailscale up` on it")
        # A create call that is repeated says the same again, whatever the settings say by now.
        own = machine.own_key if machine.auth_key else self.own_key(machine.provider)
        if own:
            auth_key = (await self._machine_keys.for_launch(machine, settings.timing.join_token_ttl_s)).secret
        else:
            auth_key = await self._keys.keys.current()
        capabilities = self._providers[machine.provider].capabilities
        text = render(
            Stage1(
                machine="" if machine.gang else machine.name,
                gang=machine.gang,
                heads=(settings.node_api.address or seen.value.self_tailnet_ip,),
                port=settings.node_api.port,
                auth_key=auth_key,
                join_token=self._tokens.join_token(machine.gang or machine.name),
                agent_sha256=agent_sha256(),
                login_server=settings.tailnet.login_server,
                accept_dns=settings.tailnet.accept_dns,
                keep_auth_key=not own,
                dead_man_s=settings.timing.dead_man_s,
                power_off=capabilities.ends_itself,
            ),
            stage1_template(systemd=capabilities.systemd, gang=bool(machine.gang)),
        )
        return UserData(text, sha256_of(auth_key), own)

    def own_key(self, provider: str) -> bool:
        """Whether new machines of a provider get keys of their own."""
        return self._keys.modes.own_key(provider)
