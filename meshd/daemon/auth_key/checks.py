"""What `meshctl doctor` checks of the tailnet's keys and devices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from meshd.api.schema import CheckRow
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.auth_key.fleet import Fleet
from meshd.daemon.auth_key.machine_keys import MachineKeys
from meshd.daemon.auth_key.ports import KeyPorts, current_key
from meshd.daemon.auth_key.spare_keys import SpareKeys
from meshd.daemon.reporting import Check, fail, ok, warn
from meshd.plaintext import counted, ending
from meshd.plan import devices
from meshd.runtime.clock import Clock
from meshd.tailnet.machine_keys import EXPOSED_CURE

NAMES_MAX: Final = 10
BY_HAND = "delete them in the admin console, or give meshd an API credential (docs/tailnet.md)"
EXPIRY_BY_HAND = "disable key expiry for them in the admin console, or join them by a tagged key (docs/tailnet.md)"


class DeviceChecks:
    """Checks of keys and devices. Each raises TailnetError when something cannot be read.

    Args:
        cluster: its name, with which the names of its machines begin.
        ports: have the keys and the tailnet's API.
        fleet: the machines and their devices.
        machine_keys: keys for one machine each.
        spares: the spare keys of machines.
        ahead: how long before its end a key is announced.
        clock: time.
    """

    def __init__(
        self,
        cluster: str,
        ports: KeyPorts,
        fleet: Fleet,
        machine_keys: MachineKeys,
        spares: SpareKeys,
        ahead: timedelta,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._keys = ports.keys
        self._api = ports.api
        self._modes = ports.modes
        self._key_file = ports.file.name
        self._journal = fleet.journal
        self._view = fleet.view
        self._machine_keys = machine_keys
        self._spares = spares
        self._ahead = ahead
        self._now = clock.now

    def all(self) -> list[Check]:
        """Every one."""
        return [
            Check(CheckName.AUTH_KEY, self.auth_key, reads=True),
            Check(CheckName.KEY_MODE, self.key_mode, reads=True),
            Check(CheckName.NODE_KEYS, self.node_keys, reads=True),
            Check(CheckName.DEVICE_TAGS, self.tags, reads=True),
            Check(CheckName.TAILNET_DEVICES, self.leftovers, reads=True),
        ]

    async def auth_key(self) -> CheckRow:
        """The key that new machines get: alive, and for how long."""
        if not self._modes.shared_key_wanted:
            return ok(CheckName.AUTH_KEY, "none is shared: each machine is given one of its own")
        await self._keys.current()
        if self._api is None:
            return ok(CheckName.AUTH_KEY, "is there; without an API credential its expiry cannot be seen")
        found = await current_key(self._keys, self._api)
        if found is None:
            return warn(
                CheckName.AUTH_KEY, ProblemCode.AUTH_KEY_UNKNOWN, "the tailnet's API does not know it", self._rotate()
            )
        if not found.valid or (found.expires is not None and found.expires <= self._now()):
            return fail(
                CheckName.AUTH_KEY, ProblemCode.AUTH_KEY_DEAD, f"{found.id} is expired or revoked", self._rotate()
            )
        if found.expires is None:
            return ok(CheckName.AUTH_KEY, f"{found.id} is valid")
        if found.expires - self._ahead <= self._now():
            text = f"{found.id} {ending(found.expires, self._now())}: then no machine can join"
            return warn(CheckName.AUTH_KEY, ProblemCode.AUTH_KEY_ENDS, text, self._rotate())
        return ok(CheckName.AUTH_KEY, f"{found.id} is valid until {found.expires:%Y-%m-%d}")

    def _rotate(self) -> str:
        if self._api is not None:
            return "`meshctl rotate-key` makes a new one and gives it to all nodes"
        return f"put a new reusable key into {self._key_file}, then `meshctl rotate-key` (docs/tailnet.md, Rotation)"

    async def key_mode(self) -> CheckRow:
        """Who can read the key that new machines get."""
        modes, own = self._modes, sorted(name for name in self._modes.by_provider if self._modes.own_key(name))
        if modes.exposed:
            text = f"others can read the reusable key in the user data of machines of {', '.join(modes.exposed)}"
            return warn(CheckName.KEY_MODE, ProblemCode.AUTH_KEY_EXPOSED, text, EXPOSED_CURE)
        if not own:
            return ok(CheckName.KEY_MODE, "one reusable key for all machines")
        count, (kept, may) = self._machine_keys.unused, self._spares.count()
        waiting = f"; {counted(count, 'key')} for machines that have not joined yet" if count else ""
        spares = f"; {kept} of {counted(may, 'node')} hold a spare" if may else ""
        return ok(CheckName.KEY_MODE, f"a key for each machine, for one use, on {', '.join(own)}{waiting}{spares}")

    async def node_keys(self) -> CheckRow:
        """Node keys of our devices that expire. Without the head's nothing works, without a machine's that machine."""
        view = self._view()
        if view is None:
            return _dark(CheckName.NODE_KEYS)
        keys = devices.expiring_keys(self._journal.machines(), view)
        if not keys:
            return ok(CheckName.NODE_KEYS, "none expires")
        names = [f"{key.owner} ({key.expires:%Y-%m-%d})" for key in keys]
        text = f"{len(keys)} will expire: {_some(names)}; then the device loses the tailnet"
        over = [key for key in keys if key.expired or key.expires <= self._now()]
        if over:
            text = f"expired: {_some([key.owner for key in over])}. {text}"
            return fail(CheckName.NODE_KEYS, ProblemCode.NODE_KEY_EXPIRED, text, EXPIRY_BY_HAND)
        if self._api is not None and all(key.machine for key in keys):
            cure = "meshd disables it by itself; `meshctl events` shows when it could not"
            return warn(CheckName.NODE_KEYS, ProblemCode.NODE_KEY_EXPIRES, text, cure)
        return warn(CheckName.NODE_KEYS, ProblemCode.NODE_KEY_EXPIRES, text, EXPIRY_BY_HAND)

    async def tags(self) -> CheckRow:
        """Devices of our machines that belong to a person's account."""
        view = self._view()
        if view is None:
            return _dark(CheckName.DEVICE_TAGS)
        found = devices.untagged(self._journal.machines(), view)
        if not found:
            return ok(CheckName.DEVICE_TAGS, "every machine's device is tagged")
        some = "1 machine belongs" if len(found) == 1 else f"{len(found)} machines belong"
        text = f"{some} to a user, whose leaving ends them: {_some(found)}"
        cure = "use a tagged auth key for new machines; these keep their owner (docs/tailnet.md)"
        return warn(CheckName.DEVICE_TAGS, ProblemCode.DEVICES_UNTAGGED, text, cure)

    async def leftovers(self) -> CheckRow:
        """Devices with a machine's name that are no machine's."""
        view = self._view()
        if view is None:
            return _dark(CheckName.TAILNET_DEVICES)
        gone = {m.name for m in self._journal.gone_with_device()}
        strays = devices.strays(self._cluster, self._journal.machines(), gone, view)
        if strays:
            names = [
                f"{peer.hostname} ({peer.tailnet_ip}, {'online' if peer.online else 'offline'})" for peer in strays
            ]
            text = f"{len(strays)} with names of this cluster are no machine's: {_some(names)}"
            cure = (
                "a journal that was lost, another meshd with this cluster's name, or an image made from a joined "
                "machine: look in the cloud's console, then delete them in the admin console"
            )
            return warn(CheckName.TAILNET_DEVICES, ProblemCode.DEVICES_STRAY, text, cure)
        stale = sorted(gone & {peer.hostname for peer in view.peers.values()})
        if stale:
            cure = "meshd deletes them by itself" if self._api else BY_HAND
            text = f"{len(stale)} left of machines that are gone: {_some(stale)}"
            return warn(CheckName.TAILNET_DEVICES, ProblemCode.DEVICES_LEFT, text, cure)
        return ok(CheckName.TAILNET_DEVICES, "each is a machine's")


def _dark(name: CheckName) -> CheckRow:
    return warn(name, ProblemCode.CHECK_NOT_POSSIBLE, "not known", "see the check of the tailnet")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
