"""PURE: stage 1, the script that a cloud runs once as root. POSIX sh, under 8 KB so that every cloud takes it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from meshd.gang_id import gang_machines

SIZE_MAX_B = 8191
GANG_SIZE_MAX_B = 12287
"""A gang's script has another part, and the clouds that rent gangs take 16 KiB."""
_MACHINE = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
_HEAD = re.compile(r"^[0-9a-zA-Z.:-]{1,253}$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_PLACE = re.compile(r"@([A-Z_]+)@")


@dataclass(frozen=True, slots=True)
class Stage1:
    """The values in a machine's stage 1 script.

    Attributes:
        machine: its name, which becomes its tailnet hostname; "" for a gang.
        heads: the head's tailnet addresses, tried in this order.
        port: of the head's node API.
        auth_key: tailnet auth key; the script writes it to a 0600 file.
        join_token: for one use by this machine.
        agent_sha256: of the node agent that the head serves (`assets.agent_sha256()`).
        login_server: control server, "" for Tailscale's own.
        accept_dns: let tailscale write resolv.conf.
        keep_auth_key: leave the key file for a later restart without state; False removes it after the join.
        dead_man_s: stage 1 gives up when it cannot fetch the agent from the head for this long. It is also the agent's
            first limit, until the head sends one.
        power_off: power the machine off when it cannot join. Set it where that ends the machine
            (`ProviderCapabilities.ends_itself`); otherwise stage 1 only writes to the console. A container never ends
            itself: its cloud would start it again.
        packages_url: where tailscale's packages come from when the image has none, or one older than 1.90.
        tries: attempts at the tailnet before giving up.
        gang: the id of the gang (meshd.gang_id), whose machines all get this script; "" for one machine.
    """

    machine: str
    heads: tuple[str, ...]
    port: int
    auth_key: SecretStr = field(repr=False)
    join_token: SecretStr = field(repr=False)
    agent_sha256: str
    login_server: str = ""
    accept_dns: bool = False
    keep_auth_key: bool = True
    dead_man_s: float = 3600.0
    power_off: bool = False
    packages_url: str = "https://pkgs.tailscale.com/stable"
    tries: int = 5
    gang: str = ""


def render(stage: Stage1, template: str) -> str:
    """The script. The same input gives the same bytes, so that a repeated create call repeats its request.

    Comment lines of the template are left out, and so are indents. Every value is quoted for the shell.

    Args:
        stage: the values.
        template: the text of deploy/node/stage1.sh for this kind of machine (`assets.stage1_template`).

    Raises:
        ValueError: a value is invalid (name, address, digest), or the script is too long.
    """
    _check(stage)
    join = {
        "machine": stage.machine or "%MACHINE%",
        "heads": list(stage.heads),
        "port": stage.port,
        "token": stage.join_token.get_secret_value(),
        "sha256": stage.agent_sha256,
        "dead_man_s": stage.dead_man_s,
    }
    if stage.gang:
        join["instance_id"] = "%ID%"
    values = {
        "MACHINE": stage.machine,
        "GANG": stage.gang,
        "LOGIN_SERVER": stage.login_server,
        "ACCEPT_DNS": "true" if stage.accept_dns else "false",
        "AUTH_KEY": stage.auth_key.get_secret_value(),
        "JOIN": json.dumps(join, separators=(",", ":")),
        "KEEP_KEY": "1" if stage.keep_auth_key else "",
        "POWER_OFF": "1" if stage.power_off else "",
        "PACKAGES": stage.packages_url.rstrip("/"),
        "TRIES": str(stage.tries),
        "DEAD_MAN_S": f"{stage.dead_man_s:.0f}",
    }
    text = filled(template, values)
    most_b = GANG_SIZE_MAX_B if stage.gang else SIZE_MAX_B
    if len(text.encode()) > most_b:
        raise ValueError(f"stage 1 has {len(text.encode())} bytes, and not every cloud takes more than {most_b}")
    return text


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template of deploy/node without comments, with each `@NAME@` replaced by that value, quoted for the shell."""
    return _PLACE.sub(lambda match: shlex.quote(values[match[1]]), "\n".join(_lines(template))) + "\n"


def _lines(template: str) -> Iterator[str]:
    """The template without comments and empty lines, and without indents: Python in it keeps one blank for each four.

    Indents are a twentieth of the script.
    """
    first, *rest = template.splitlines()
    yield first
    python = False
    for line in rest:
        body = line.lstrip(" ")
        if not body or body.startswith("#"):
            continue
        python = python and body != "PY"
        yield " " * ((len(line) - len(body)) // 4) + body if python else body
        python = python or body.endswith("<<'PY'")


def _check(stage: Stage1) -> None:
    if bool(stage.gang) == bool(stage.machine) or (stage.gang and not gang_machines(stage.gang)):
        raise ValueError("a script is for one machine, or for a gang")
    if stage.machine and not _MACHINE.match(stage.machine):
        raise ValueError(f"{stage.machine!r} is not a machine name")
    if not stage.heads or not all(_HEAD.match(head) for head in stage.heads):
        raise ValueError("the head's addresses are missing or invalid")
    if not _SHA256.match(stage.agent_sha256):
        raise ValueError("agent_sha256 is not a sha256 digest")
    for secret, name in ((stage.auth_key, "auth_key"), (stage.join_token, "join_token")):
        if not re.match(r"^[!-~]+$", secret.get_secret_value()):
            raise ValueError(f"{name} is empty or has characters that no key has")
    for url in (stage.login_server, stage.packages_url):
        if url and not re.match(r"^https?://[!-~]+$", url):
            raise ValueError("login_server and packages_url must be http(s) addresses")
