"""The machine: its files, its services, its state."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from . import state as states
from . import units
from .facts import Looks
from .files import read_json, write_file, write_if_changed
from .gpu import LoadWatch
from .hostname import HostName
from .hosts import read_block, with_block
from .kind import has_systemd, has_tun
from .own_names import without_own
from .paths import Paths
from .sections import Sections
from .services import S6Service, Service, SystemdService
from .slurm_files import SlurmLocal
from .state import State
from .tools import find, run
from .users import Account

SLURMD_DEFAULT = "/usr/sbin/slurmd"


class Node:
    """The objects that the agent's steps share.

    Args:
        paths: the machine's paths.
        systemctl: the program; used only where systemd runs.
        tun: whether tailscaled has a TUN device; None: find out.

    Attributes:
        systemd: whether systemd runs the services; otherwise s6 does.
        tun: whether tailscaled has a TUN device; otherwise it runs in user space.
        owned: whether it is somebody's own: it never powers itself off.
        own_device: whether its owner logged it in on the tailnet: nobody else logs it in, out or on.
        sections: the node settings.
    """

    def __init__(self, paths: Paths, systemctl: str = "systemctl", tun: bool | None = None) -> None:
        self.paths = paths
        self.systemctl = systemctl
        self.state: State = states.load(paths.state_file, paths.node_token)
        self.load = LoadWatch()
        self.looks: Looks | None = None
        """Looks at the hardware that were begun before the join."""
        self.slurm_local = SlurmLocal(paths)
        self.sections = Sections(self)
        self.systemd = has_systemd(paths)
        self.tun = has_tun(paths) if tun is None else tun
        self.owned = paths.host_file.exists()
        self.own_device = read_json(paths.host_file).get("tailnet") == "own"
        self.host_name = HostName(paths, self.tun)
        self.munge_changed = False
        """munged has another key than at the last proof with the head."""
        self.clock_skew_s: Callable[[], float] = lambda: 0.0
        """This clock minus the head's, measured now."""
        self.guards_metadata = str(paths.root) == "/"
        """False with a directory as root: firewall rules would be the host's."""
        self.agent = self._service("meshd-node", units.NODE_UNIT)
        self.tailscaled = self._service("tailscaled", units.TAILSCALED_UNIT)
        self.meshnetd = S6Service(paths.pod_services / "meshnetd")
        self.munged = self._service("munged", units.MUNGE_UNIT)
        self.slurmd = self._service("slurmd", units.SLURMD_UNIT)

    def _service(self, name: str, unit: str) -> Service:
        """The service: its name in a pod, and its unit of systemd."""
        if self.systemd:
            return SystemdService(unit, self.systemctl)
        return S6Service(self.paths.pod_services / name)

    def stay_up(self) -> None:
        """What stage 1 has started, s6 starts also after it lost a supervisor, as S6Service.start has it."""
        for name in ("meshd-node", "tailscaled"):
            (self.paths.pod_services / name / "down").unlink(missing_ok=True)

    def save(self) -> None:
        """Save the state."""
        states.save(self.paths.state_file, self.paths.node_token, self.state)

    @property
    def slurm(self) -> Account:
        """The user slurm with the head's uid and gid."""
        return Account("slurm", self.state.slurm_uid, self.state.slurm_gid)

    @property
    def munge(self) -> Account:
        """The user munge with the head's uid and gid."""
        return Account("munge", self.state.munge_uid, self.state.munge_gid)

    def slurmd_command(self) -> list[str]:
        """slurmd's arguments for this slot.

        In a container slurmd says that the machine was just booted (-b): it would take the host's boot time, and
        slurmctld waits for a boot after its request.
        """
        own = [] if self.systemd or "-b" in self.state.slurmd_args else ["-b"]
        return ["--conf-server", self.state.conf_server, "-N", self.state.slot, *own, *self.state.slurmd_args]

    def prepare_slurmd(self) -> None:
        """Write slurmd's arguments, this machine's own settings and the unit, so that one call can start it later.

        Raises:
            NotPossible: see `SlurmLocal`.
        """
        line = " ".join(shlex.quote(word) for word in self.slurmd_command())
        variables = {"SLURMD_ARGS": line, **self.slurm_local.put(self.state.slurm_settings)}
        lines = "".join(f"{name}={value}\n" for name, value in variables.items())
        write_if_changed(self.paths.slurmd_env, lines.encode(), 0o600)
        for directory in (self.paths.slurm_log, self.paths.slurmd_spool):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o755)  # jobs run their script out of the spool directory
        if self.systemd:
            self.install_units(False)

    def install_units(self, with_agent: bool) -> None:
        """Write the units. Reload systemd (0.1 s) only when it may have read an older text."""
        texts = {units.SLURMD_UNIT: units.slurmd_unit(find("slurmd") or SLURMD_DEFAULT, str(self.paths.slurmd_env))}
        if with_agent:
            python = sys.executable or "/usr/bin/python3"
            texts[units.NODE_UNIT] = units.node_unit(python, str(self.paths.agent), str(self.paths.state_file.parent))
            texts[units.METADATA_UNIT] = units.metadata_unit(python, str(self.paths.agent))
        stale = False
        for name, text in texts.items():
            known = (self.paths.units / name).exists()
            stale |= write_if_changed(self.paths.units / name, text.encode()) and known
        masked = self.paths.units / units.MUNGE_UNIT
        if masked.is_symlink() and str(masked.readlink()) == "/dev/null":
            masked.unlink(missing_ok=True)
            stale = True
        if stale:
            run([self.systemctl, "daemon-reload"], 60.0)

    def keep_names(self, roster: dict[str, str]) -> bool:
        """Write the roster and this machine into /etc/hosts, and set the host name to the slot's name.

        The roster is saved, so that the names come back at once when another program replaces the file.

        Args:
            roster: name to address, of the nodes and the head.

        Returns:
            Whether /etc/hosts changed.
        """
        write_if_changed(self.paths.roster, json.dumps(roster, sort_keys=True).encode())
        return self._put_names(roster)

    def check_names(self) -> None:
        """Restore host name and /etc/hosts when another program replaced them, as cloud-init does at each boot.

        Without a saved roster, ask the head for it.
        """
        roster = {str(name): str(address) for name, address in read_json(self.paths.roster).items()}
        if roster:
            self._put_names(roster)
            return
        self.host_name.keep(self.state.slot)
        text = self._hosts()[1]
        if read_block(self._with_names(text, self._own_name())).keys() - read_block(text).keys():
            self.state.roster_version = 0

    def _put_names(self, roster: dict[str, str]) -> bool:
        path, old = self._hosts()
        new = self._with_names(old, {**self._own_name(), **roster})
        if new != old:
            write_file(path, new.encode("utf-8", "surrogateescape"))
        self.host_name.keep(self.state.slot)
        return new != old

    def _with_names(self, text: str, names: dict[str, str]) -> str:
        return with_block(without_own(text, self.state.slot if self.state.address else "", names), names)

    def _own_name(self) -> dict[str, str]:
        return {self.state.slot: self.state.address} if self.state.address else {}

    def _hosts(self) -> tuple[Path, str]:
        path = Path(str(self.paths.hosts.resolve()))
        try:
            return path, path.read_text("utf-8", "surrogateescape")
        except FileNotFoundError:
            return path, ""
