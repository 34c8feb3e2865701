"""The web page on a real head: on the tailnet alone, and only for those whom tailscaled names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

PORT = 7680
ASK = """\
import sys, urllib.error, urllib.request
asked = urllib.request.Request(sys.argv[1], headers=dict(one.split("=") for one in sys.argv[2:]))
try:
    answer = urllib.request.urlopen(asked, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
except OSError as error:
    print(0, error)
    raise SystemExit
print(answer.status, answer.read().decode())
"""


async def test_the_tailnet_decides_who_may_look(lab: Lab) -> None:
    """All devices of this tailnet, the head too, have the tag of the nodes."""
    await lab.have(1)
    ((machine, row),) = (await lab.nodes()).items()
    address = lab.head.tailnet_ip

    async def head(path: str, *headers: str, host: str = address) -> tuple[int, str]:
        text = (await lab.head.run("python3", "-c", ASK, f"http://{host}:{PORT}{path}", *headers)).text
        status, _, body = text.partition(" ")
        return int(status), body

    async def answer(path: str, status: int) -> str:
        async def look() -> str | None:
            found, body = await head(path)
            return body or "-" if found == status else None

        return await lab.until(look, f"{path} answers {status}")

    def tables(**web: Any) -> str:
        return "[web]\n" + "".join(f"{name} = {value}\n" for name, value in web.items())

    assert (await head("/"))[0] == 0, "it is off by default"
    async with lab.also(tables(enabled="true", allow='["tag:meshd"]')):
        text = await answer("/nodes", 200)
        assert row["slot"] in text and f"/nodes/{machine}" in text
        for path in ("/", "/jobs", "/plots?span=hour", "/events", "/problems", f"/nodes/{machine}"):
            assert (await head(path))[0] == 200, path
        assert (await head("/", "Host=evil.example"))[0] == 421
        assert (await head("/", host="head"))[0] == 200
        assert (await head("/", host="127.0.0.1"))[0] == 0
        listens = (await lab.head.run("ss", "-Hltn", f"sport = :{PORT}")).text.split()
        assert listens.count(f"{address}:{PORT}") == 1 and listens.count("LISTEN") == 1
        refused = await lab.inside(machine, "python3", "-c", ASK, f"http://{address}:{PORT}/nodes")
        assert refused.startswith("403 ") and f"{machine} is a node of the cluster" in refused
        assert row["slot"] not in refused.replace(machine, "")

        async def sampled() -> bool:
            return "Nothing is known of this time" not in (await head("/plots?span=hour"))[1].split("Join times")[0]

        await lab.until(sampled, "the first sample is there")
    async with lab.also(tables(enabled="true", allow='["user@example.net"]')):
        assert "a device with tag:meshd" in await answer("/", 403)

    async def ended() -> bool:
        return (await head("/"))[0] == 0

    await lab.until(ended, "it is off again")
