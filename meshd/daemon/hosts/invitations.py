"""What people ask about owned machines: invite one, list them, evict one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from pydantic import SecretStr

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import Denied, NotReady, Refused, Unknown
from meshd.bootstrap.assets import agent_sha256, invitation_template
from meshd.bootstrap.invitation import Invitation, render
from meshd.codes import RefusalCode
from meshd.daemon.auth_key.machine_keys import MachineKeys
from meshd.daemon.live_settings import LiveSettings
from meshd.daemon.machine_store import MachineStore
from meshd.daemon.nodes.tokens import MachineTokens
from meshd.model.desired import Desired, Pool
from meshd.model.host import PROVIDER, Host, HostState
from meshd.model.ids import PoolName, SlotName, parse_machine_name, slot_index, slot_name, slot_order
from meshd.model.machine import HOLDS_SLOT
from meshd.plan.admission import release_text, slurmd_window
from meshd.plan.hosts import offer_of, unsuited
from meshd.store.hosts import Hosts
from meshd.tailnet.machine_keys import MARGIN_S

OFF = "owned machines are off: there is no [providers.static]"
OFF_CURE = "add an empty table [providers.static] to the settings, and `systemctl restart meshd`"


class Invitations:
    """Answers INVITE and HOSTS, and evicts hosts.

    Args:
        live: the settings.
        hosts: the journal's.
        machine_store: the machines.
        tokens: makes the tokens.
        keys: mints the auth keys of invitations.
        desired: the pools as they are wanted now.
        head_address: of the node API; "" while it is not known.
        magic_dns_suffix: what the names of the tailnet's devices end with; "" while it is not known.
        slurm_version: of slurmctld; "" while it is not known.
    """

    def __init__(
        self,
        live: LiveSettings,
        hosts: Hosts,
        machine_store: MachineStore,
        tokens: MachineTokens,
        keys: MachineKeys,
        *,
        desired: Callable[[], Desired],
        head_address: Callable[[], str],
        magic_dns_suffix: Callable[[], str],
        slurm_version: Callable[[], str],
    ) -> None:
        self._live = live
        self._hosts = hosts
        self._machine_store = machine_store
        self._tokens = tokens
        self._keys = keys
        self._desired = desired
        self._head_address = head_address
        self._magic_dns_suffix = magic_dns_suffix
        self._slurm_version = slurm_version

    async def invite(self, request: s.InviteRequest, actor: Actor) -> s.InviteAnswer:
        """Write an invitation down, and render its script."""
        if actor.uid != 0:
            raise Denied(
                "only root invites machines: whoever is root on a node has the cluster's munge key",
                "run meshctl as root",
            )
        pool, address = self._pool(request.pool), self._address()
        self._check_name(request.name)
        before, now = self._hosts.find(request.name), self._now()
        if before is not None and before.enrolled_at is not None:
            raise Refused(
                f"{request.name} is a host of {before.pool} already",
                f"name it otherwise, or evict it: `meshctl remove {request.name}`",
                code=RefusalCode.HOST_EXISTS,
            )
        host = Host(
            name=request.name, pool=PoolName(pool.name), slot=self._slot(pool, before), invited_at=now,
            expires_at=now + timedelta(seconds=request.expires_s),
            invitation=self._number(request.name), usd_per_hour=request.usd_per_hour,
            wake_mac=request.wake_mac.lower(), wake_command=request.wake_command,
            sleep_command=request.sleep_command,
        )  # fmt: skip
        text = f"invited by {actor.user} to {host.slot} until {host.expires_at:%Y-%m-%d %H:%M} UTC"
        self._hosts.put(host, text, now)
        script = await self.script(host)
        host = self._hosts.find(host.name) or host
        return s.InviteAnswer(
            name=host.name, pool=host.pool, slot=host.slot, expires_at=host.expires_at, script=script,
            tailnet_command=self._command(host, address), logs_in=host.auth_key,
        )  # fmt: skip

    async def script(self, host: Host) -> str:
        """The script of an invitation: the same each time.

        Raises:
            TailnetError: its auth key cannot be minted.
        """
        settings = self._live.settings
        left_s = (host.expires_at - self._now()).total_seconds()
        kept = None
        if host.enrolled_at is None:  # its key was used, and is revoked
            kept = await self._keys.for_invitation(host.name, host.invitation, max(left_s, 0.0) + MARGIN_S)
        if kept is not None and not host.auth_key:
            self._hosts.change(host.name, "its invitation has an auth key of its own", self._now(), auth_key=True)
        invitation = Invitation(
            host=host.name, heads=(self._address(),), port=settings.node_api.port, token=self._token(host),
            expires_at=host.expires_at, agent_sha256=agent_sha256(), slurm_version=self._slurm_version(),
            slurmd=self._slurmd(),
            auth_key=kept.secret if kept is not None else None, login_server=settings.tailnet.login_server,
            tailnet=self._magic_dns_suffix(), accept_dns=settings.tailnet.accept_dns,
        )  # fmt: skip
        return render(invitation, invitation_template())

    async def hosts(self) -> s.HostsView:
        """All hosts and invitations."""
        found = sorted(self._hosts.all(), key=lambda host: slot_order(host.slot))
        return s.HostsView(at=self._now(), hosts=[self._row(host) for host in found])

    def knows(self, name: str) -> bool:
        """Whether there is such a host or invitation."""
        return self._hosts.find(name) is not None

    def evict(self, name: str, actor: Actor, *, force: bool, dry_run: bool) -> tuple[Host, str]:
        """Have a host leave for good; an invitation is withdrawn at once. Returns it, and what will be done.

        With `force`, a host that is away is not waited for: meshd forgets it, and its token opens nothing any more.
        """
        host, now = self._hosts.find(name), self._now()
        if host is None:
            raise Unknown(f"there is no host {name}", "`meshctl hosts` lists them", code=RefusalCode.NO_SUCH_MACHINE)
        by = f"removed by {actor.user}"
        if host.enrolled_at is None:
            if not dry_run:
                self._hosts.forget(name, f"{by}: its invitation is void", now)
            return host, "its invitation is void" if not dry_run else "its invitation would be void"
        gone = force and not host.machine and not host.present(now)
        how = "is forgotten: it is away" if gone else "is evicted: meshd is taken off it"
        if not dry_run:
            changes = {"evict": True, "sleeping_since": None, **({"evicted_at": now} if gone else {})}
            self._hosts.change(name, by, now, **changes)
        return host, how if not dry_run else how.replace("is ", "would be ", 1)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _pool(self, name: str) -> Pool:
        pool = self._desired().pools.get(name)
        if pool is None:
            known = ", ".join(self._desired().pools) or "none"
            raise Unknown(f"there is no pool {name}", f"pools are: {known}", code=RefusalCode.NO_SUCH_POOL)
        table = self._live.settings.providers.get(PROVIDER)
        if table is None or not table.enabled:
            raise Refused(OFF, OFF_CURE, code=RefusalCode.HOSTS_OFF)
        if PROVIDER not in pool.providers:
            cure = f'add "{PROVIDER}" to pools.{name}.providers'
            raise Refused(f"pool {name} takes no owned machines", cure, code=RefusalCode.HOSTS_OFF)
        return pool

    def _slot(self, pool: Pool, before: Host | None) -> SlotName:
        """The slot of the last invitation with this name; else one that no host has, and if possible no machine."""
        now = self._now()
        taken = {h.slot for h in self._hosts.all() if h is not before and (h.enrolled_at is not None or h.open(now))}
        if before is not None and slot_index(pool.name, before.slot) and before.slot not in taken:
            return before.slot
        free = [slot for i in range(1, pool.max_nodes + 1) if (slot := slot_name(pool.name, i)) not in taken]
        if not free:
            raise Refused(
                f"all {pool.max_nodes} slots of pool {pool.name} belong to hosts",
                f"raise pools.{pool.name}.max_nodes", code=RefusalCode.NO_ROOM,
            )  # fmt: skip
        held = {m.slot for m in self._machine_store.journal.machines() if m.phase in HOLDS_SLOT}
        return next((slot for slot in free if slot not in held), free[0])

    def _number(self, name: str) -> int:
        """No number is used twice for a name, also when the host was forgotten meanwhile."""
        before = self._hosts.find(name)
        return max(before.invitation + 1 if before is not None else 1, int(self._now().timestamp()))

    def _address(self) -> str:
        address = self._head_address()
        if not address:
            raise NotReady("the head does not know its tailnet address yet", "run `tailscale up` on it")
        return address

    def _slurmd(self) -> tuple[str, str]:
        window = slurmd_window(self._slurm_version())
        return ("", "") if window is None else (release_text(window[0]), release_text(window[1]))

    def _token(self, host: Host) -> SecretStr:
        return self._tokens.invitation_token(host.name, host.invitation)

    def _command(self, host: Host, address: str) -> str:
        """For a shell of root. The token is no argument of a program: printf is the shell's own."""
        url = f"http://{address}:{self._live.settings.node_api.port}/v1/invitation"
        token = self._token(host).get_secret_value()
        return f"printf 'Authorization: Bearer {token}\\n' | curl -fsS -H @- {url} | sh"

    def _row(self, host: Host) -> s.HostRow:
        offer, pool = offer_of(host), self._desired().pools.get(host.pool)
        misfit = unsuited(host, pool) if pool is not None else f"there is no pool {host.pool} any more"
        return s.HostRow(
            name=host.name, pool=host.pool, slot=host.slot, state=state_of(host, self._now()), machine=host.machine,
            gpu=offer.gpu if offer else "", gpus=offer.gpus if offer else 0, cpus=offer.vcpus if offer else 0,
            memory_mib=offer.memory_mib if offer else 0, usd_per_hour=host.usd_per_hour, address=host.tailnet_ip,
            seen_at=host.seen_at, expires_at=host.expires_at if host.enrolled_at is None else None,
            own_device=host.enrolled_at is not None and not host.ours, wakes=host.can_wake, sleeps=host.can_sleep,
            problem=host.problem or (misfit if host.enrolled_at is not None else ""),
        )  # fmt: skip

    def _now(self) -> datetime:
        return self._machine_store.now()

    def _check_name(self, name: str) -> None:
        """Refuse a name that a machine or a slot has."""
        pools = self._desired().pools
        is_slot = any(slot_index(pool, name) is not None for pool in pools) or name in pools
        if is_slot or parse_machine_name(self._live.settings.cluster.name, name) is not None:
            raise Refused(f"{name} is the name of a slot or a machine", "name it otherwise",
                          code=RefusalCode.HOST_EXISTS)  # fmt: skip


def state_of(host: Host, now: datetime) -> str:
    """How a host is, in one word; see HostRow."""
    if host.enrolled_at is None:
        return "invited" if host.open(now) else "expired"
    if host.evict and not host.machine:
        return "evicting"
    if host.present(now):
        return host.state.value
    if host.machine and host.woken_at is not None:
        return "waking"
    return "asleep" if host.sleeping_since is not None or (host.can_sleep and host.state is HostState.FREE) else "away"
