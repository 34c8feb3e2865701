"""A machine with a Debian whose slurmd the head does not serve: refused, and not changed."""

from __future__ import annotations

import pytest

from tests.e2e.lab import Lab
from tests.e2e.owned import hosts, invite, owned, said, same

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/unit/node/test_node_invitation.py: each release
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

SUITE = "bookworm"


async def test_a_slurmd_that_the_head_does_not_serve(owners: Lab, lab: Lab) -> None:
    """The head has 24.11, which serves 23.02 and newer. This Debian has 22.05."""
    async with owned(lab, "attic", suite=SUITE) as (attic,):
        script = await invite(lab, "attic")

        # apt does not know what it has before its lists are there: what was changed is taken back
        before = await attic.manifest()
        refused = await attic.redeem(script)
        assert refused.returncode == 1
        assert "slurmd 22.05 is what apt has" in said(refused) and "23.02 to 24.11" in said(refused)
        assert "taking back" in said(refused)
        same(before, await attic.manifest())
        assert await lab.devices() == set(), "it did not get as far as the tailnet"

        # apt knows: nothing is changed
        await attic.run("apt-get", "-q", "update")
        before = await attic.manifest()
        refused = await attic.redeem(script)
        assert "slurmd 22.05 is what apt has" in said(refused) and "stays as it is" in said(refused)
        same(before, await attic.manifest())

        # it is installed
        await attic.run("sh", "-ec", "apt-get -qy install slurmd; systemctl disable --now munge slurmd", timeout_s=120)
        before = await attic.manifest()
        refused = await attic.redeem(script)
        assert "slurmd 22.05 is installed" in said(refused) and "stays as it is" in said(refused)
        same(before, await attic.manifest())
        assert (await hosts(lab))["attic"]["state"] == "invited"
