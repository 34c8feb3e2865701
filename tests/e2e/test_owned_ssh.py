"""`meshctl invite --ssh`, from the head to a real ssh server: who comes in becomes a host, all others learn why not."""

from __future__ import annotations

import re
import time

import pytest

from deploy.sandbox.owned import OwnedMachine
from deploy.sandbox.proc import Result
from tests.e2e.lab import Lab
from tests.e2e.owned import evicted, hosts, nodes_of, owned, same

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/unit/cli/test_invite.py: the command line, and what is said of each failure
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

HANGS_S = 60.0
"""A machine that hangs is noticed by then."""
NOBODY = 250
"""No machine has this address."""
SSHD = """
[ -s /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
systemctl start ssh
useradd --create-home --shell /bin/sh owner
useradd --create-home --shell /bin/sh guest
echo 'owner ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/owner
for home in /home/owner /home/guest /root; do
    install -d -m 0700 $home/.ssh
    install -m 0600 /dev/stdin $home/.ssh/authorized_keys <<END
$1
END
done
chown -R owner:owner /home/owner/.ssh
chown -R guest:guest /home/guest/.ssh
"""


async def over_ssh(lab: Lab, to: str) -> Result:
    """Invite `tower` there."""
    return await lab.meshctl("invite", "--pool", "h100", "--name", "tower", "--ssh", to, timeout_s=400)


def words(result: Result) -> str:
    """What meshctl told the user."""
    return result.stderr.decode()


async def test_over_ssh(owners: Lab, lab: Lab) -> None:
    await lab.head.shell("rm -rf /root/.ssh; install -d -m 0700 /root/.ssh; "
                         "ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519")  # fmt: skip
    try:
        async with owned(lab, "tower", ssh=True) as (tower,):
            await _ssh(lab, tower)
    finally:
        await lab.head.run("rm", "-rf", "/root/.ssh")


async def _ssh(lab: Lab, tower: OwnedMachine) -> None:
    key = (await lab.head.run("cat", "/root/.ssh/id_ed25519.pub")).text
    await tower.run("sh", "-ec", SSHD, "sshd", key)
    before = await tower.manifest()

    # nobody has looked at its host key
    refused = await over_ssh(lab, f"owner@{tower.address}")
    assert refused.returncode == 1
    assert f"run `ssh owner@{tower.address}` once" in words(refused)
    host_key = (await tower.run("cat", "/etc/ssh/ssh_host_ed25519_key.pub")).text
    await lab.head.write("/root/.ssh/known_hosts", f"{tower.address} {host_key}\n", "0600")

    # nobody there has this name; somebody who may not be root; nothing is there
    for to, why in (
        (f"mallory@{tower.address}", f"ssh-copy-id mallory@{tower.address}"),
        (f"guest@{tower.address}", "sudo without a password"),
        (f"owner@{tower.address.rpartition('.')[0]}.{NOBODY}", "is it on"),
    ):
        refused = await over_ssh(lab, to)
        assert (refused.returncode, why in words(refused)) == (1, True), words(refused)
    assert (await hosts(lab))["tower"]["state"] == "invited"
    same(before, await tower.manifest())

    # it hangs: its kernel takes the call, and nobody answers
    tower.pause()
    began = time.monotonic()
    refused = await over_ssh(lab, f"owner@{tower.address}")
    assert (refused.returncode, "is it on" in words(refused)) == (1, True), words(refused)
    assert time.monotonic() - began < HANGS_S
    tower.resume()

    joined = await over_ssh(lab, f"owner@{tower.address}")
    assert joined.returncode == 0, words(joined)
    assert "tower: meshd: this machine is the host tower" in words(joined)
    assert not re.search(r"tskey-|[0-9a-f]{64}", words(joined)), "no secret is shown"
    await nodes_of(lab, "tower")
    await evicted(lab, tower)
    same(before, await tower.manifest())
