"""Our image for pods: its entry point and its services, with s6 of two releases, as an unprivileged container."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox.hypervisor import MachineSpec, Pod
from deploy.sandbox.images import SUITES
from deploy.sandbox.world import World
from tests.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runc"), reason="pods need root and runc"),
]

SANDBOX = f"podi{os.getpid() % 100000}"
# The words of the arguments, and the environment, must arrive as they are; then the program stays, as a user's may.
SCRIPT = """
echo "$# <$1> <$GREETING> <$SECRET_KEY> $(pwd)" >>/root/ran
ls /run/meshd-pod >/root/files
{ tr "\\0" " " </proc/1/cmdline; echo; } >/root/first
trap "echo stopped start >>/root/order; exit" TERM
sleep 1000 & wait
"""
WORD = "it's $HOME"
GREETING = "good 'day' \\ $x"
ENV = {
    "GREETING": GREETING,
    "SECRET_KEY": "hush",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_API_KEY": "hush",
    "RUNPOD_API_KEY": "hush",
}
SERVICES = ("tailscaled", "meshnetd", "munged", "slurmd", "meshd-node", "start")


def args() -> str:
    """As a cloud's create call has them."""

    def quoted(word: str) -> str:
        return "'" + word.replace("'", "'\\''") + "'"

    return f"sh -c {quoted(SCRIPT)} sh {quoted(WORD)}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    async with World(SANDBOX) as made:
        pod = Pod(args=args(), env=ENV)
        specs = [MachineSpec(name=suite, user_data="", image=f"{suite}-pod", pod=pod) for suite in SUITES]
        await asyncio.gather(*map(made.hypervisor.boot, specs))
        yield made


@pytest.fixture(params=SUITES)
def told(request: pytest.FixtureRequest, world: World) -> Callable[..., object]:
    """Runs a script in the pod of one suite, and returns what it prints."""

    async def run(script: str, *, check: bool = True) -> str:
        return (await world.hypervisor.run(request.param, ["sh", "-c", script], check=check)).text

    run.suite = request.param  # type: ignore[attr-defined]
    return run


async def up(told, service: str, wanted: str = "true") -> None:
    await until(
        lambda: told(f"s6-svstat -o up /run/meshd-pod/service/{service}", check=False),
        lambda text: text == wanted,
        f"{service} is up: {wanted}",
        20,
    )


async def test_arguments_and_environment_reach_start_once_and_no_trace_stays(told) -> None:
    await until(lambda: told("cat /root/ran", check=False), bool, "the arguments ran", 20)
    assert await told("cat /root/ran") == f"1 <{WORD}> <{GREETING}> <hush> /"
    assert await told("cat /root/first /root/files") == "s6-svscan /run/meshd-pod/service \nservice"
    secrets = "cat /proc/[0-9]*/cmdline /proc/1/environ | tr '\\0' '\\n' | grep -c -e 'hus[h]' -e 'GREETIN[G]'"
    assert await told(f"{secrets}; true") == "1", "only the program's own words name it"


async def test_services_have_a_clean_environment(told) -> None:
    await up(told, "meshnetd")
    environment = (await told("cat /proc/$(s6-svstat -o pid /run/meshd-pod/service/meshnetd)/environ")).split("\0")
    names = {line.split("=")[0] for line in environment if line}
    own = {"OLDPWD", "MESHNET"}  # the shell's, and meshnetd's
    assert names - own == {"PATH", "HOME", "PWD", "NVIDIA_VISIBLE_DEVICES"}


async def test_what_waits_for_stage_1_and_the_agent_begins_stopped(told) -> None:
    states = [await told(f"s6-svstat -o up /run/meshd-pod/service/{name}") for name in SERVICES]
    assert states == ["false", "true", "false", "false", "false", "true"]


async def test_each_line_has_its_services_name_and_is_kept_for_root_alone(world: World, told) -> None:
    await told("s6-svc -wu -u /run/meshd-pod/service/tailscaled")
    await until(
        lambda: told("cat /var/log/meshd-pod/tailscaled/current"),
        lambda text: "TUN" in text or "tun" in text,
        "a log",
        20,
    )
    assert "\ntailscaled: " in world.hypervisor.console(told.suite)
    assert "\nmeshnetd: meshnetd: this machine" not in world.hypervisor.console(told.suite)
    assert await told("stat -c %a /var/log/meshd-pod") == "700"
    running = await told("tr '\\0' ' ' </proc/$(s6-svstat -o pid /run/meshd-pod/service/tailscaled)/cmdline")
    assert "--tun=userspace-networking --socks5-server=127.0.0.1:1055" in running


async def test_orphans_are_reaped(told) -> None:
    await told("sh -c 'sh -c \"sleep 0.1; exit 7\" & exit 0'")

    async def zombies() -> str:
        return await told("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null; true")

    await asyncio.sleep(0.2)
    await until(zombies, lambda text: text == "", "no zombie is left", 20)


async def test_a_service_that_dies_is_started_again(told) -> None:
    first = await told("s6-svstat -o pid /run/meshd-pod/service/tailscaled")
    await told(f"kill -9 {first}")

    async def pid() -> str:
        return await told("s6-svstat -o pid /run/meshd-pod/service/tailscaled")

    await until(pid, lambda text: text not in (first, "-1"), "another process", 20)


async def test_a_stop_ends_services_in_order_within_five_seconds(world: World, told) -> None:
    """Two of them are slow, and one does not listen."""
    for name, text in (
        ("slurmd", "trap 'sleep 0.3; echo stopped slurmd >>/root/order; exit 0' TERM; while :; do sleep 0.05; done"),
        ("meshd-node", "trap 'cat /run/meshd-pod/stopping && echo stopped agent >>/root/order; exit 0' TERM; "
                       "while :; do sleep 0.05; done"),
        ("munged", "trap '' TERM; while :; do sleep 0.05; done"),
    ):  # fmt: skip
        run = f"/run/meshd-pod/service/{name}/run"
        await told(f"printf '%s\\n' '#!/bin/sh' {_quoted(text)} >{run}; s6-svc -wu -u {run.removesuffix('/run')}")
    await asyncio.sleep(0.3)  # until the traps are set
    began_s = time.monotonic()
    await world.hypervisor.restart(told.suite)
    took_s = time.monotonic() - began_s
    await until(lambda: told("grep -c good /root/ran", check=False), lambda n: n == "2", "it runs again", 20)
    assert await told("cat /root/order") == "stopped slurmd\nstopped agent\nstopped start"
    assert took_s < 8, "a cloud kills it after 10 s"


async def test_after_a_restart_nothing_of_the_last_run_is_left(told) -> None:
    assert (
        await told("ls /run/meshd-pod; ls /run/meshd-pod/service/slurmd")
        == "service\ndown\nevent\nfinish\nlog\nrun\nsupervise"
    )
    states = [await told(f"s6-svstat -o up /run/meshd-pod/service/{name}") for name in SERVICES]
    assert states == ["false", "true", "false", "false", "false", "true"]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
