"""The machine's paths, below a root: `/` on a machine, a temporary directory in tests."""

from __future__ import annotations

from pathlib import Path


class Paths:
    """All files that the agent reads or writes."""

    def __init__(self, root: Path = Path("/"), proc: Path = Path("/proc")) -> None:
        self.root = root
        self.proc = proc
        self.join_file = root / "etc/meshd-node/join.json"
        self.node_token = root / "etc/meshd-node/node.token"
        self.auth_key = root / "etc/meshd-node/tailscale.key"
        self.spare_key = root / "etc/meshd-node/tailscale.spare.key"
        self.auth_key_once = root / "etc/meshd-node/tailscale.once.key"
        self.tailscaled_socket = root / "run/tailscale/tailscaled.sock"
        self.reauth_file = root / "var/lib/meshd-node/reauth.json"
        self.state_file = root / "var/lib/meshd-node/state.json"
        self.slurmd_env = root / "var/lib/meshd-node/slurmd.env"
        self.slurm_local = root / "var/lib/meshd-node/slurm"
        self.slurmconf_library = root / "usr/lib/meshd/pod/libslurmconf.so"
        unpacked = root / "opt/meshd-node/lib"
        self.agent = unpacked if unpacked.is_dir() else root / "opt/meshd-node/meshd-node.pyz"
        self.agent_log = root / "var/log/meshd-node.log"
        self.run_dir = root / "run/meshd-node"
        self.units = root / "etc/systemd/system"
        self.systemd_marker = root / "run/systemd/system"
        self.hosts = root / "etc/hosts"
        self.hostname = root / "etc/hostname"
        self.passwd = root / "etc/passwd"
        self.group = root / "etc/group"
        self.os_release = root / "etc/os-release"
        self.machine_id = root / "etc/machine-id"
        self.ssh_host_key = root / "etc/ssh/ssh_host_ed25519_key.pub"
        self.dev = root / "dev"
        self.console = root / "dev/console"
        self.munge_etc = root / "etc/munge"
        self.munge_key = root / "etc/munge/munge.key"
        self.munge_key_staged = root / "etc/munge/munge.key.staged"
        self.munge_key_previous = root / "etc/munge/munge.key.previous"
        self.munge_run = root / "run/munge"
        self.munge_socket = root / "run/munge/munge.socket.2"
        self.munge_lib = root / "var/lib/munge"
        self.munge_log = root / "var/log/munge"
        self.slurm_log = root / "var/log/slurm"
        self.slurmd_spool = root / "var/spool/slurmd"
        self.apt_lists = root / "var/lib/apt/lists"
        self.policy_rc_d = root / "usr/sbin/policy-rc.d"
