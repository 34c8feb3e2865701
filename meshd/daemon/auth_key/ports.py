"""What auth keys are made, kept and looked up with: the control server's API, the key files, the user's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from meshd import config
from meshd.codes import FaultCode
from meshd.config import Settings, TailnetSettings
from meshd.errors import ConfigError, Fault
from meshd.obs.log import register_secret
from meshd.runtime.clock import Clock
from meshd.tailnet.admin import AuthKey, KeyApi, TailscaleAdmin
from meshd.tailnet.adminhttp import AdminHttp, ApiToken, OAuthClient
from meshd.tailnet.headscale import HeadscaleAdmin
from meshd.tailnet.keys import AuthKeys, AuthKeySource, KeyFile, Minter
from meshd.tailnet.keystore import KeyStore, key_id_of
from meshd.tailnet.machine_keys import EXPOSED_CURE, KeyMode, KeyModes, modes_of
from meshd.tailnet.off_api import OffApi

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeyPorts:
    """The outside world of auth keys: the API, the key files, the user's file.

    Attributes:
        api: the control server's API; None without a credential.
        minter: mints keys; None without a credential.
        store: keeps keys with their secrets.
        file: the user's key file.
        keys: the reusable key for new machines.
        modes: whether the machines of a provider get the reusable key or one each.
        mints: the settings say that meshd mints the reusable key: the user's file is not read.
        tags: the settings' tags of a key that meshd mints.
    """

    api: KeyApi | None
    minter: Minter | None
    store: KeyStore
    file: KeyFile
    keys: AuthKeySource
    modes: KeyModes
    mints: bool
    tags: tuple[str, ...]

    @property
    def chosen_tags(self) -> tuple[str, ...]:
        """The tags that a minted reusable key must have, since they may have changed; () where the file decides."""
        return self.tags if self.mints else ()

    async def key_record(self) -> AuthKey | None:
        """The API's record of the reusable key; None when no machine gets that key or the API does not know it.

        Raises:
            TailnetError: the API or the key cannot be read.
        """
        if self.api is None or not self.modes.shared_key_wanted:
            return None
        return await current_key(self.keys, self.api)


def open_ports(settings: Settings, clock: Clock, user_data_private: Mapping[str, bool]) -> KeyPorts:
    """Open what the settings name.

    Args:
        settings: those in force.
        clock: time.
        user_data_private: by enabled provider: whether only the machine itself can read its user data.
    """
    tailnet = settings.tailnet
    api = key_api_or_off(tailnet, clock)
    minter = Minter(api, tags=tailnet.tags, cluster=settings.cluster.name, clock=clock) if api is not None else None
    store, file = KeyStore(settings.cluster.state_dir), KeyFile(tailnet.auth_key_file)
    mode = KeyMode(tailnet.key_mode) if tailnet.key_mode else None
    modes = modes_of(mode, user_data_private, can_mint=minter is not None)
    if modes.exposed:
        log.warning("reusable_key_readable_by_others", providers=modes.exposed, cure=EXPOSED_CURE)
    mints = tailnet.mint_auth_key
    keys = AuthKeys(store, file, minter if mints else None, clock)
    return KeyPorts(api, minter, store, file, keys, modes, mints, tailnet.tags)


async def current_key(keys: AuthKeySource, api: KeyApi) -> AuthKey | None:
    """The record of the key that new machines get; None when the API does not know it, which proves nothing.

    Raises:
        TailnetError: the API or the key cannot be read.
    """
    key_id = key_id_of(await keys.current())  # "" for keys of control servers with another format
    return await api.get_key(key_id) if key_id else None


def key_api_or_off(tailnet: TailnetSettings, clock: Clock) -> KeyApi | None:
    """The control server's API; an OffApi when its credential cannot be used."""
    try:
        return key_api(tailnet, clock)
    except ConfigError as error:
        log.error("tailnet_credential_off", problems=error.problems)
        reason = f"{error.source}: {'; '.join(fault.text for fault in error.faults)}"
        cure = "; ".join(fault.cure for fault in error.faults if fault.cure) or "correct it"
        return OffApi(reason, f"{cure}; then `systemctl restart meshd`")


def key_api(tailnet: TailnetSettings, clock: Clock) -> KeyApi | None:
    """The control server's API, when there is a credential for it.

    Raises:
        ConfigError: the credential cannot be used.
    """
    token, secret = config.tailnet_credentials(tailnet)
    for one in (token, secret):
        if one is not None:
            register_secret(one.get_secret_value())
    credential = ApiToken(token) if token else OAuthClient(tailnet.oauth_client_id, secret) if secret else None
    if credential is None:
        return None
    if tailnet.admin_api == "headscale":
        if isinstance(credential, OAuthClient):
            raise ConfigError(
                "tailnet.admin_api",
                [
                    Fault(
                        "headscale takes an API key (api_token), not an OAuth client", code=FaultCode.CREDENTIAL_NEEDED
                    )
                ],
            )
        default = TailnetSettings.model_fields["api_base_url"].default
        url = tailnet.login_server if tailnet.api_base_url == default else tailnet.api_base_url
        if not url:
            raise ConfigError(
                "tailnet.admin_api",
                [Fault("headscale's address is missing: set login_server", code=FaultCode.KEY_MISSING)],
            )
        return HeadscaleAdmin(AdminHttp(url, credential, clock), clock, user=tailnet.headscale_user)
    return TailscaleAdmin(AdminHttp(tailnet.api_base_url, credential, clock), tailnet=tailnet.tailnet)
