"""Root's part in writing the nodes' names into the head's /etc/hosts: `python -m meshd.tailnet.headhosts`.

meshd-hosts.path starts it when meshd, which is not root, has written a request: {"names": {"h100-1": "100.64.0.2"}}, of
mode 0600 in its runtime directory. The names go into a marked block; the rest of the file stays as it is. Only names of
slots are taken, as root's own settings and nodes.conf have them, with addresses of the tailnet, and none that the file
has already, so that a request cannot redirect a name that is in use here. It uses only the standard library, because it
runs as root.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
import sys
from pathlib import Path
from typing import Any

from meshd.plan.slurm_lines import known
from meshd.runtime.hostsfile import with_block
from meshd.runtime.request import RequestRefused, read_small, take, write_whole

REQUEST = "hosts.request"
HOSTS = Path("/etc/hosts")
SETTINGS = Path("/etc/meshd/meshd.toml")
NODES_CONF = Path("/var/lib/meshd-slurm/nodes.conf")
REQUEST_MAX_B = 4 << 20
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
TAILNET = ipaddress.ip_network("100.64.0.0/10")


def serve(request: Path, hosts: Path, settings: Path = SETTINGS, nodes: Path = NODES_CONF) -> bool:
    """Take the request and write the block; returns whether the file changed.

    Args:
        request: see the module.
        hosts: /etc/hosts.
        settings: meshd.toml; its pools have the slots that may be named.
        nodes: root's nodes.conf; its slots may be named too.

    Raises:
        RequestRefused: the request asks for something that is not given; the file is as it was.
        OSError: the request cannot be taken, or the file not be written.
    """
    asked = _names(take(request, REQUEST_MAX_B))
    slots = known(read_small(settings), read_small(nodes))
    for name in asked:
        if not slots.has_slot(name):
            raise RequestRefused(f"{name[:70]!r} is no slot of a pool in {settings}")
    return put(hosts, asked)


def put(hosts: Path, names: dict[str, str]) -> bool:
    """Write the block; without names, take it out. The file keeps its mode, and is root's.

    Args:
        hosts: /etc/hosts; a link is followed.
        names: name to address.

    Returns:
        Whether the file changed.

    Raises:
        OSError: there is no such file, or it cannot be written: it is as it was.
    """
    hosts = hosts.resolve()
    mode = hosts.stat().st_mode & 0o777
    old = hosts.read_text("utf-8", "surrogateescape")
    new = with_block(old, names)
    if new != old:
        write_whole(hosts, new.encode("utf-8", "surrogateescape"), mode)
    return new != old


def fits(name: str, address: object) -> bool:
    """Whether this is a plain name with an address of the tailnet. Nothing else is accepted."""
    try:
        inside = ipaddress.IPv4Address(address) in TAILNET if isinstance(address, str) else False
    except ValueError:
        inside = False
    return inside and _NAME.fullmatch(name) is not None


def _names(asked: dict[str, Any]) -> dict[str, str]:
    names = asked.get("names")
    if not isinstance(names, dict):
        raise RequestRefused("the request has no names")
    for name, address in names.items():
        if not fits(name, address):
            raise RequestRefused(
                f"{name[:70]!r} with {str(address)[:70]!r} is no node's name with an address in {TAILNET}"
            )
    return names


def main() -> int:
    """The command line; the exit code: 0 done, 1 refused or not possible."""
    parser = argparse.ArgumentParser(description="Keeps the nodes' names in /etc/hosts, as meshd asks.")
    parser.add_argument("directory", type=Path, nargs="?", help="meshd's runtime directory, where the request is")
    parser.add_argument("--remove", action="store_true", help="take meshd's block out of /etc/hosts")
    arguments = parser.parse_args()
    if arguments.remove == (arguments.directory is not None):
        parser.error("either a directory or --remove")
    try:
        changed = put(HOSTS, {}) if arguments.remove else serve(arguments.directory / REQUEST, HOSTS)
    except (RequestRefused, OSError) as error:
        sys.stderr.write(f"{HOSTS} is left as it is: {error}\n")
        return 1
    if changed:
        sys.stderr.write(f"{HOSTS}: meshd's block was {'removed' if arguments.remove else 'written'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
