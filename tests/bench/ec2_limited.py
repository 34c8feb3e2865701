"""An EC2 that does little but limit: RunInstances by a token bucket, answers after a time. Speaks EC2's protocol."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from urllib.parse import parse_qs

from aiohttp import web

NAMESPACE = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
LIMITED = (
    "<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>Request limit exceeded.</Message></Error>"
    "</Errors><RequestID>r</RequestID></Response>"
)
IMAGE = (
    "<item><imageId>ami-1</imageId><imageState>available</imageState><rootDeviceName>/dev/sda1</rootDeviceName></item>"
)


class LimitedEc2:
    """One region.

    Args:
        burst: calls of RunInstances that a full bucket lets through; 0 for any number.
        per_s: tokens that come back per second.
        answer_s: until a call is answered.
    """

    def __init__(self, burst: float, per_s: float, answer_s: float) -> None:
        self._burst, self._per_s, self._answer_s = burst, per_s, answer_s
        self._tokens, self._at_s = burst, time.monotonic()
        self._instances: dict[str, str] = {}
        self._sent_s: list[float] = []
        self.calls: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.Response:
        """Any call of the query API."""
        form = {key: values[0] for key, values in parse_qs(await request.text()).items()}
        action = form.get("Action", "")
        if action == "RunInstances" and not self._let_through():
            self.calls["refused"] += 1
            return web.Response(status=503, text=LIMITED, content_type="text/xml")
        self.calls[action] += 1
        if action == "RunInstances":
            self._sent_s.append(time.monotonic())
            body = self._run(form)
        elif action == "DescribeInstances":
            sets = "".join(f"<item><instancesSet>{one}</instancesSet></item>" for one in self._instances.values())
            body = f"<reservationSet>{sets}</reservationSet>"
        elif action == "DescribeImages":
            body = f"<imagesSet>{IMAGE}</imagesSet>"
        else:
            body = ""
        await asyncio.sleep(self._answer_s)
        text = f"<{action}Response {NAMESPACE}><requestId>r</requestId>{body}</{action}Response>"
        return web.Response(text=text, content_type="text/xml")

    async def figures(self, _: web.Request) -> web.Response:
        """What came in: calls by action, refused ones apart; seconds from the first launch taken to the last."""
        span_s = self._sent_s[-1] - self._sent_s[0] if self._sent_s else 0.0
        return web.json_response({**self.calls, "made": len(self._instances), "span_s": span_s})

    def _let_through(self) -> bool:
        if not self._burst:
            return True
        now_s = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _run(self, form: dict[str, str]) -> str:
        token = form["ClientToken"]
        tags = "".join(
            f"<item><key>{form[f'TagSpecification.1.Tag.{n}.Key']}</key>"
            f"<value>{form[f'TagSpecification.1.Tag.{n}.Value']}</value></item>"
            for n in range(1, 50)
            if f"TagSpecification.1.Tag.{n}.Key" in form
        )
        for index in range(int(form["MinCount"])):
            self._instances.setdefault(
                f"{token} {index}",
                f"<item><instanceId>i-{len(self._instances):017x}</instanceId>"
                "<instanceState><code>0</code><name>pending</name></instanceState>"
                f"<amiLaunchIndex>{index}</amiLaunchIndex>"
                f"<instanceType>{form['InstanceType']}</instanceType><launchTime>2026-01-01T00:00:00.000Z</launchTime>"
                f"<placement><availabilityZone>us-east-1a</availabilityZone></placement><tagSet>{tags}</tagSet></item>",
            )
        made = "".join(self._instances[f"{token} {index}"] for index in range(int(form["MinCount"])))
        return f"<reservationId>r-1</reservationId><instancesSet>{made}</instancesSet>"


async def _serve(arguments: argparse.Namespace) -> None:
    ec2 = LimitedEc2(arguments.burst, arguments.per_s, arguments.answer_ms / 1000)
    app = web.Application(client_max_size=2**20)
    app.add_routes([web.post("/", ec2.answer), web.get("/figures", ec2.figures)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stdout.write(json.dumps({"port": runner.addresses[0][1]}) + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent closes it


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--burst", type=float, default=0)
    parser.add_argument("--per-s", type=float, default=0)
    parser.add_argument("--answer-ms", type=float, default=0)
    asyncio.run(_serve(parser.parse_args()))
