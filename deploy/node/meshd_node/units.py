"""PURE: the systemd units of a node."""

from __future__ import annotations

NODE_UNIT = "meshd-node.service"
HOST_UNIT = "meshd-host.service"
METADATA_UNIT = "meshd-metadata.service"
SLURMD_UNIT = "meshd-slurmd.service"
MUNGE_UNIT = "munge.service"
TAILSCALED_UNIT = "tailscaled.service"


def node_unit(python: str, agent: str, lock: str) -> str:
    """The agent's own unit. It restarts always: the head reaches the machine only through the agent.

    Python starts when `install` has released the lock: it would slow down what brings the machine up.
    """
    return f"""[Unit]
Description=meshd node agent
Wants=network-online.target
After=network-online.target tailscaled.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStartPre=-/usr/bin/flock -w 10 {lock} /bin/true
ExecStart={python} {agent} run
Restart=always
RestartSec=1
KillMode=process
UMask=0077
OOMScoreAdjust=-900
LimitCORE=0

[Install]
WantedBy=multi-user.target
"""


def host_unit(run: str) -> str:
    """The unit of the agent of an owned machine, for its whole stay in the cluster. It ends well when that is over."""
    return f"""[Unit]
Description=meshd host agent
Wants=network-online.target
After=network-online.target tailscaled.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/bin/sh {run}
Restart=on-failure
RestartSec=1
KillMode=process
UMask=0077
Environment=PYTHONDONTWRITEBYTECODE=1
OOMScoreAdjust=-900
LimitCORE=0

[Install]
WantedBy=multi-user.target
"""


def metadata_unit(python: str, agent: str) -> str:
    """Closes the metadata service to users at each boot, before the network and thus before any user's process.

    It runs after services that load their own rules, since those flush all others.
    """
    return f"""[Unit]
Description=Close the cloud's metadata service to users
DefaultDependencies=no
After=local-fs.target systemd-modules-load.service nftables.service netfilter-persistent.service ufw.service
Before=sysinit.target network-pre.target shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={python} {agent} metadata

[Install]
WantedBy=sysinit.target
"""


def slurmd_unit(slurmd: str, env_file: str) -> str:
    """slurmd of the slot. Never enabled: the agent starts it last.

    KillMode=process as in Slurm's own unit: a restart of slurmd must not end the running steps.
    """
    return f"""[Unit]
Description=Slurm node daemon, started by meshd
After=network-online.target munge.service tailscaled.service
StartLimitIntervalSec=0

[Service]
Type=exec
EnvironmentFile={env_file}
RuntimeDirectory=slurm
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
ExecStart={slurmd} -D $SLURMD_ARGS
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
KillMode=process
Delegate=yes
LimitNOFILE=131072
LimitMEMLOCK=infinity
LimitSTACK=infinity
TasksMax=infinity
"""
