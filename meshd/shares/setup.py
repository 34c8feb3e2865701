"""PURE: what makes a head the NFS server of its nodes: files, masked units, directories, and tables of the settings.

The server listens at the head's tailnet address alone, and speaks NFS 4.1 and 4.2 alone, so that it needs no other
service that listens (rpcbind, rpc.statd). Where the head already exports something of its own, its server's settings
stay as they are: then meshd only adds its exports.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshd.plan.shares import Share

NFS_CONF = "/etc/nfs.conf.d/meshd.conf"
DROP_IN = "/etc/systemd/system/nfs-server.service.d/meshd.conf"
EXPORTS_D = "/etc/exports.d"
UNITS_DIR = "/etc/systemd/system"
UNNEEDED = ("rpcbind.socket", "rpcbind.service", "rpc-statd.service")
"""Services of older NFS. rpcbind listens on all networks."""
THREADS = 16
"""nfsd's default is 8. Each waits for the disk while it serves one call."""
PROPOSED = (Share("home", "/home"), Share("data", "/srv/data"))
DATA_MODE = 0o1777
"""Of a shared directory that init makes: everybody may put something there, and nobody may remove another's."""
MASKED = "# Masked by `meshctl init --share`: "
ADDRESS_WAIT_S = 300

_PROPOSAL = """
# Directories that every node has at the same path, by NFS from the head: docs/files.md
[share.home]
path = "/home"

[share.data]
path = "/srv/data"
"""


@dataclass(frozen=True, slots=True)
class HeadState:
    """What is there now.

    Attributes:
        settings: the text of meshd.toml.
        shares: those of the settings.
        address: the head's on the tailnet.
        has_server: the package of the NFS server is installed.
        files: the texts of `NFS_CONF` and `DROP_IN`; a missing file is not in it.
        masked: those of `UNNEEDED` that are masked.
        others: exports that are not meshd's, as lines for people.
        old_mounts: the head itself mounts NFS older than 4, which needs `UNNEEDED`.
        missing: shared directories that are not there.
        on_root: shared directories in the file system of /.
        setuid: shared directories where the head runs programs with the rights of their owner or group.
        firewalls: names of firewalls that are switched on.
        running: nfs-server runs with the settings as they are.
    """

    settings: str
    shares: tuple[Share, ...]
    address: str
    has_server: bool
    files: Mapping[str, str] = field(default_factory=dict)
    masked: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()
    old_mounts: bool = False
    missing: tuple[str, ...] = ()
    on_root: tuple[str, ...] = ()
    setuid: tuple[str, ...] = ()
    firewalls: tuple[str, ...] = ()
    running: bool = False


@dataclass(frozen=True, slots=True)
class TextChange:
    """A file with its old and new text; `old` is None when it is new."""

    path: str
    old: str | None
    new: str
    reason: str

    def diff(self) -> str:
        """As people read it."""
        old, new = (self.old or "").splitlines(keepends=True), self.new.splitlines(keepends=True)
        return "".join(difflib.unified_diff(old, new, self.path if self.old is not None else "/dev/null", self.path))


@dataclass(frozen=True, slots=True)
class SetUp:
    """What is to be done.

    Attributes:
        files: to write.
        mask: units to stop and mask.
        directories: to make, with `DATA_MODE`.
        restart: nfs-server has to read its settings again.
        start: nfs-server does not run.
        notes: what a person should know.
    """

    files: tuple[TextChange, ...] = ()
    mask: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    restart: bool = False
    start: bool = False
    notes: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.files or self.mask or self.directories or self.restart or self.start)

    @property
    def changes_settings(self) -> bool:
        """Whether meshd has to read its settings again."""
        return any(change.path.endswith(".toml") for change in self.files)


def plan(state: HeadState, settings_path: str) -> SetUp:
    """What is to be done on this head."""
    files, notes = [], []
    shares = state.shares
    if not shares:
        shares = PROPOSED
        new = f"{state.settings.rstrip()}\n{_PROPOSAL}"
        files.append(
            TextChange(settings_path, state.settings, new, "no [share] yet: home directories and one for data")
        )
    own = [share for share in shares if not share.server]
    if not own:
        return SetUp(tuple(files), notes=("all shares are of other servers: the head needs no server of its own",))
    mask: Sequence[str] = ()
    if state.others:
        notes.append(
            f"this head exports something of its own already ({'; '.join(state.others[:3])}): its NFS server keeps its "
            "settings, and listens where it listens now. meshd only adds its exports"
        )
    else:
        for path, text, reason in (
            (NFS_CONF, nfs_conf(state.address), "listen on the tailnet alone, NFS 4.1 and newer"),
            (DROP_IN, drop_in(state.address, _masked_by_us(state)), "start when the tailnet's address is there"),
        ):
            if state.files.get(path) != text:
                files.append(TextChange(path, state.files.get(path), text, reason))
        mask = [] if state.old_mounts else [unit for unit in UNNEEDED if unit not in state.masked]
        if state.old_mounts:
            notes.append(
                "this head mounts NFS older than 4: rpcbind and rpc.statd stay, and rpcbind listens everywhere"
            )
    notes += [_firewall(name) for name in state.firewalls]
    if state.on_root:
        notes.append(
            f"{' and '.join(state.on_root)}: in the file system of /, which root of a node can reach by guessed file "
            "handles, as any user but root. Before you rent from hosts that you do not trust: put shares on their own "
            "file systems"
        )
    if state.setuid:
        notes.append(
            f"{' and '.join(state.setuid)}: mounted without nosuid. Root of a node can put a program there that runs "
            "on the head with the rights of any user or group but root's, e.g. of disk: mount with nosuid,nodev"
        )
    directories = [path for path in (share.at_server for share in own) if path in state.missing]
    changed = any(change.path in (NFS_CONF, DROP_IN) for change in files)
    return SetUp(
        tuple(files), tuple(mask), tuple(directories), restart=changed and state.running, start=not state.running,
        notes=tuple(notes),
    )  # fmt: skip


def _masked_by_us(state: HeadState) -> tuple[str, ...]:
    """The units that were not masked before the first run."""
    before = masked_in(state.files.get(DROP_IN, ""))
    ours = before or tuple(unit for unit in UNNEEDED if unit not in state.masked)
    return () if state.old_mounts else ours


def nfs_conf(address: str) -> str:
    """nfs.conf(5) of the server."""
    return f"""\
# Written by `meshctl init --share`. The server answers the tailnet alone.
[nfsd]
host={address}
vers3=n
vers4.0=n
threads={THREADS}
"""


def drop_in(address: str, masked: Sequence[str]) -> str:
    """What nfs-server.service needs to start when the machine boots: nfsd fails while the address is not there."""
    look = f'[ -n "$$(ip -4 -o address show to {address})" ]'
    wait = f"i=0; until {look}; do i=$$((i + 1)); [ $$i -lt {ADDRESS_WAIT_S} ] || exit 1; sleep 1; done"
    line = f"{MASKED}{' '.join(masked)}\n" if masked else ""
    return f"""\
# Written by `meshctl init --share`.
{line}[Unit]
Wants=tailscaled.service
After=tailscaled.service

[Service]
ExecStartPre=/bin/sh -c '{wait}'
"""


def masked_in(text: str) -> tuple[str, ...]:
    """The units that a drop-in says were masked with it."""
    lines = [line.removeprefix(MASKED) for line in text.splitlines() if line.startswith(MASKED)]
    return tuple(unit for line in lines for unit in line.split() if unit in UNNEEDED)


def _firewall(name: str) -> str:
    rule = {
        "ufw": "`ufw allow in on tailscale0 to any port 2049 proto tcp`",
        "firewalld": "`firewall-cmd --permanent --zone=trusted --add-interface=tailscale0; firewall-cmd --reload`",
    }.get(name, "accept TCP port 2049 from the interface tailscale0")
    return f"{name} is on: nodes need TCP port 2049 from the tailnet. Where tailscale does not let it in itself: {rule}"
