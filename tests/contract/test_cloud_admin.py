"""The stand-ins' admin API."""

from __future__ import annotations

from contextlib import AsyncExitStack

import aiohttp

from meshd.contract.steps import launched
from tests.contract.rigs import build, h100_offers


async def test_admin_api() -> None:
    async with AsyncExitStack() as stack:
        rig = await build("lambda", stack)
        provider = rig.make()
        http = await stack.enter_async_context(aiohttp.ClientSession(rig.server.admin_url))

        async def call(method: str, path: str, body: object = None, status: int = 200) -> dict:  # type: ignore[type-arg]
            async with http.request(method, path, json=body) as answer:
                assert answer.status == status, await answer.text()
                found: dict = await answer.json()  # type: ignore[type-arg]
                return found

        defaults = await call("PUT", "/boot-defaults", {"missing_gpus": 1, "clock_offset_s": 900})
        assert defaults == {"image": "trixie", "clock_offset_s": 900, "missing_gpus": 1, "hard_nat": False}
        await call("PUT", "/boot-defaults", {"nonsense": 1}, 400)
        machine = await launched(rig, provider)
        (row,) = (await call("GET", "/machines?cloud=lambda"))["machines"]
        assert (row["id"], row["token"], row["gpus"], row["life"]) == (machine.id, machine.token, 1, "pending")
        rig.clock.advance(3600)
        costs = await call("GET", "/costs")
        assert costs["cost_usd"] == costs["clouds"]["lambda"]["cost_usd"] == row["usd_per_hour"]
        await call("POST", f"/machines/lambda/{machine.id}/die")
        assert (await call("GET", "/costs"))["usd_per_hour_now"] == 0
        await call("POST", "/machines/lambda/none/die", status=404)

        await call("POST", "/faults", {"cloud": "lambda", "kind": "quota", "operation": "launch", "times": 3}, 201)
        await call("POST", "/faults", {"kind": "no such kind"}, 400)
        assert [f["kind"] for f in (await call("GET", "/faults"))["faults"]] == ["quota"]
        await call("DELETE", "/faults?cloud=lambda")
        assert (await call("GET", "/faults"))["faults"] == []

        await call("PUT", "/clouds/lambda/capacity", {"instance_type": "*", "place": "us-east-1", "machines": 0})
        assert "us-east-1" not in {offer.region for offer in await h100_offers(provider)}
        await call("PUT", "/clouds/lambda/capacity", {"instance_type": "*", "place": "us-east-1", "machines": None})
        await call("PUT", "/clouds/lambda/types/gpu_1x_h100_sxm5", {"cents_per_hour": 111, "regions": ["us-east-1"]})
        cheap = [o for o in await h100_offers(provider) if o.instance_type == "gpu_1x_h100_sxm5"]
        assert [(offer.region, offer.usd_per_hour) for offer in cheap] == [("us-east-1", 1.11)]
        limits = await call("PUT", "/clouds/lambda/limits", {"launch_spacing_s": 12})
        assert limits == {"call_spacing_s": 0.0, "launch_spacing_s": 12.0}
