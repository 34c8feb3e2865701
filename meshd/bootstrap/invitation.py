"""PURE: the script of an invitation, which makes a machine that exists a host. POSIX sh, run by root."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import SecretStr

from meshd.bootstrap.stage1 import filled

PACKAGES = "https://pkgs.tailscale.com/stable"
TRIES = 5


@dataclass(frozen=True, slots=True)
class Invitation:
    """The values in the script.

    Attributes:
        host: its name, which is also the tailnet hostname of a device that the script logs in.
        heads: the head's tailnet addresses, tried in this order.
        port: of the head's node API.
        token: of the invitation.
        expires_at: when that ends.
        agent_sha256: of the node agent that the head serves.
        slurm_version: the head's; "" when it is not known.
        slurmd: the oldest and the newest release of slurmd that the head serves, e.g. "23.02"; "" when not known.
        auth_key: for one use; None: only a machine that is on the tailnet already can be a host.
        login_server: control server, "" for Tailscale's own.
        tailnet: its MagicDNS suffix; "" when it is not known.
        accept_dns: let tailscale write resolv.conf.
        dead_man_s: the script gives up when it cannot fetch the agent from the head for this long.
    """

    host: str
    heads: tuple[str, ...]
    port: int
    token: SecretStr = field(repr=False)
    expires_at: datetime
    agent_sha256: str
    slurm_version: str = ""
    slurmd: tuple[str, str] = ("", "")
    auth_key: SecretStr | None = field(default=None, repr=False)
    login_server: str = ""
    tailnet: str = ""
    accept_dns: bool = False
    dead_man_s: float = 600.0


def render(invitation: Invitation, template: str) -> str:
    """The script. Every value is quoted for the shell.

    Args:
        invitation: the values.
        template: the text of deploy/node/invitation.sh (`assets.invitation_template`).
    """
    one = invitation
    enrol = {
        "host": one.host,
        "heads": list(one.heads),
        "port": one.port,
        "token": one.token.get_secret_value(),
        "sha256": one.agent_sha256,
        "slurm_version": one.slurm_version,
    }
    values = {
        "HOST": one.host,
        "LOGIN_SERVER": one.login_server,
        "ACCEPT_DNS": "true" if one.accept_dns else "false",
        "AUTH_KEY": one.auth_key.get_secret_value() if one.auth_key is not None else "",
        "TAILNET": one.tailnet,
        "HEADS": " ".join(one.heads),
        "PORT": str(one.port),
        "SLURMD_OLDEST": one.slurmd[0],
        "SLURMD_NEWEST": one.slurmd[1],
        "ENROL": json.dumps(enrol, separators=(",", ":")),
        "PACKAGES": PACKAGES,
        "EXPIRES": f"{one.expires_at.timestamp():.0f}",
        "TRIES": str(TRIES),
        "DEAD_MAN_S": f"{one.dead_man_s:.0f}",
    }
    return filled(template, values)
