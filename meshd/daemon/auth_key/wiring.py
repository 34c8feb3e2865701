"""Puts the parts together that have to do with the auth key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from meshd import config
from meshd.config import Settings, TailnetSettings
from meshd.daemon.active_rotation import ActiveRotations
from meshd.daemon.auth_key.controller import AuthKeyController
from meshd.daemon.auth_key.handshakes import HandshakePrimer
from meshd.daemon.auth_key.machine_keys import MachineKeys
from meshd.daemon.auth_key.service import AuthKeyService
from meshd.daemon.auth_key.spare_keys import SpareKeys
from meshd.daemon.auth_key.steps import Prover, StepContext
from meshd.daemon.auth_key.triggers import RotationTriggers
from meshd.daemon.machines.store import MachineStore
from meshd.daemon.nodes.agents import AgentQueues
from meshd.errors import ConfigError, TailnetError
from meshd.model.observed import Fresh, Observation, SlurmView, TailnetView
from meshd.obs.log import register_secret
from meshd.runtime.clock import Clock
from meshd.store.auth_rotations import AuthRotations
from meshd.store.machine_keys import OpenKeys
from meshd.tailnet.admin import AuthKey, KeyApi, TailscaleAdmin
from meshd.tailnet.adminhttp import AdminHttp, ApiToken, OAuthClient
from meshd.tailnet.headscale import HeadscaleAdmin
from meshd.tailnet.keys import AuthKeys, KeyFile, Minter
from meshd.tailnet.keystore import KeptKey, KeyStore
from meshd.tailnet.machine_keys import EXPOSED_CURE, KeyMode, KeyModes, modes_of
from meshd.tailnet.off_api import OffApi
from meshd.tailnet.rotation import AuthKeyStage, logs_in
from meshd.tailnet.rotation_fleet import AuthKeyFleet, fleet_of, reachable

SILENT_POLLS = 2.5
"""An agent that has not spoken for so many polls' length cannot be reached."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sights:
    """What is seen of the fleet, asked anew each time, and how to make oneself seen.

    Attributes:
        key_record: what the API tells of the key in use; None when it does not.
        look: reads the tailnet anew.
        greet: see LocalApi.greet.
    """

    tailnet: Callable[[], Observation[TailnetView]]
    slurm: Callable[[], Observation[SlurmView]]
    key_record: Callable[[], AuthKey | None]
    look: Callable[[], Awaitable[None]]
    greet: Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AuthKeyParts:
    """All of it.

    Attributes:
        keys: the reusable key.
        file: the user's.
        own_keys: keys for one machine each.
        spares: those of them that machines hold for the case that their device is deleted.
        modes: which of them a provider's machines get.
        api: the control server's API; None without a credential.
    """

    keys: AuthKeys
    file: KeyFile
    own_keys: MachineKeys
    spares: SpareKeys
    modes: KeyModes
    api: KeyApi | None
    engine: AuthKeyController
    occasion: RotationTriggers
    desk: AuthKeyService


def build(
    settings: Settings,
    clock: Clock,
    machine_store: MachineStore,
    agents: AgentQueues,
    prover: Prover,
    sights: Sights,
    rotations: AuthRotations,
    active: ActiveRotations,
    user_data_private: Mapping[str, bool],
) -> AuthKeyParts:
    """Make the parts.

    Args:
        settings: those in force.
        clock: time.
        machine_store: the machines.
        agents: asks nodes.
        prover: proves a key.
        sights: what is seen.
        rotations: of the auth key.
        active: tells whether a rotation, of either key, is active.
        user_data_private: of each enabled provider.

    Raises:
        StoreError: the journal cannot be read.
    """
    tailnet, cluster = settings.tailnet, settings.cluster.name
    api = key_api_or_off(tailnet, clock)
    minter = Minter(api, tags=tailnet.tags, cluster=cluster, clock=clock) if api is not None else None
    mints = tailnet.mint_auth_key
    store, file = KeyStore(settings.cluster.state_dir), KeyFile(tailnet.auth_key_file)
    modes = modes_of(
        KeyMode(tailnet.key_mode) if tailnet.key_mode else None, user_data_private, can_mint=minter is not None
    )
    if modes.exposed:
        log.warning("reusable_key_readable_by_others", providers=modes.exposed, cure=EXPOSED_CURE)

    silent_s = SILENT_POLLS * settings.node_api.poll_hold_s

    def fleet() -> AuthKeyFleet:
        in_use = store.in_use()
        return fleet_of(
            machine_store.journal.machines(), sights.tailnet(), sights.slurm(), in_use=in_use.sha256 if in_use else "",
            now=clock.now(), silent_s=silent_s, spare_at=lambda machine: spares.held_since(machine),
        )  # fmt: skip

    def head_address() -> str:
        seen = sights.tailnet()
        return seen.value.self_tailnet_ip if isinstance(seen, Fresh) else ""

    def fleet_tags() -> tuple[str, ...]:
        seen = sights.tailnet()
        joined = {m.tailnet_id for m in machine_store.journal.machines() if m.tailnet_id}
        found = {p.tags for p in seen.value.peers.values() if p.id in joined} if isinstance(seen, Fresh) else set()
        return next(iter(found)) if len(found) == 1 else ()

    tags_of_key: dict[str, tuple[str, ...]] = {}

    async def own_tags() -> tuple[str, ...]:
        """Those of the reusable key, whichever is there: a machine has the same rights with either."""
        if mints and tailnet.tags:
            return tailnet.tags
        kept = store.in_use() or _in_file(file)
        if kept is None or (not kept.tags and not kept.id):
            return fleet_tags() or tailnet.tags
        if not kept.tags and kept.id not in tags_of_key and api is not None:
            record = await api.get_key(kept.id)
            tags_of_key[kept.id] = record.tags if record is not None else ()
        return kept.tags or tags_of_key.get(kept.id) or fleet_tags() or tailnet.tags

    own_keys = MachineKeys(
        OpenKeys(machine_store.journal),
        store,
        api,
        minter,
        tags=own_tags,
        logging_in=lambda *what: logs_in(engine.active, *what),
        machine_store=machine_store,
        clock=clock,
    )

    def rotated_at() -> datetime | None:
        """A rotation that was taken back, or is under way and paces itself, exchanges nothing by the way."""
        last = engine.last
        return last.started_at if last is not None and last.stage is AuthKeyStage.DONE else None

    spares = SpareKeys(
        own_keys, agents, machine_store, clock, reachable=lambda machine: reachable(machine, clock.now(), silent_s),
        rotated_at=rotated_at,
    )  # fmt: skip

    def expires() -> datetime | None:
        record = sights.key_record()
        return record.expires if record is not None else None

    means = StepContext(
        cluster=cluster, store=store, api=api, minter=minter, prover=prover, agents=agents, machine_store=machine_store,
        chosen_tags=tailnet.tags if mints else (), fleet_tags=fleet_tags, own_keys=own_keys,
        spares=spares, head_address=head_address,
    )  # fmt: skip
    occasion = RotationTriggers(
        store, file, minter, mints=mints, ahead=timedelta(days=tailnet.rotate_before_expiry_d), expires=expires,
        engine=lambda: engine, active=active, clock=clock,
    )  # fmt: skip
    engine = AuthKeyController(
        rotations, means, fleet, clock, occasion=occasion, look=sights.look,
        greetings=HandshakePrimer(sights.greet, agents, clock),
    )  # fmt: skip
    desk = AuthKeyService(
        engine, occasion, store, file, mints=mints, can_mint=minter is not None,
        shared_key_wanted=modes.shared_key_wanted, fleet=fleet, active=active, clock=clock,
    )  # fmt: skip
    keys = AuthKeys(store, file, minter if mints else None, clock)
    return AuthKeyParts(keys, file, own_keys, spares, modes, api, engine, occasion, desk)


def _in_file(file: KeyFile) -> KeptKey | None:
    """The user's key; one that cannot be read is told where it is needed."""
    try:
        return file.read()
    except TailnetError:
        return None


def key_api_or_off(tailnet: TailnetSettings, clock: Clock) -> KeyApi | None:
    """The control server's API; when its credential cannot be used, one that says so at each call."""
    try:
        return key_api(tailnet, clock)
    except ConfigError as error:
        log.error("tailnet_credential_off", problems=error.problems)
        reason = f"{error.source}: {'; '.join(fault.text for fault in error.faults)}"
        cure = "; ".join(fault.cure for fault in error.faults if fault.cure) or "mend it"
        return OffApi(reason, f"{cure}; then `systemctl restart meshd`")


def key_api(tailnet: TailnetSettings, clock: Clock) -> KeyApi | None:
    """The control server's API, when there is a credential for it.

    Raises:
        ConfigError: keys shall be minted and there is no credential.
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
            raise ConfigError("tailnet.admin_api", ["headscale takes an API key (api_token), not an OAuth client"])
        default = TailnetSettings.model_fields["api_base_url"].default
        url = tailnet.login_server if tailnet.api_base_url == default else tailnet.api_base_url
        if not url:
            raise ConfigError("tailnet.admin_api", ["headscale's address is missing: set login_server"])
        return HeadscaleAdmin(AdminHttp(url, credential, clock), clock, user=tailnet.headscale_user)
    return TailscaleAdmin(AdminHttp(tailnet.api_base_url, credential, clock), tailnet=tailnet.tailnet)
