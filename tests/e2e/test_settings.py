"""Settings that are wrong change nothing and are told; who may look and who may change."""

from __future__ import annotations

import json

import pytest

from meshd.codes import FaultCode, ProblemCode
from tests.e2e.lab import USER, Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@pytest.mark.any_machines
async def test_a_reload_with_wrong_settings_keeps_the_old_ones(lab: Lab) -> None:
    await lab.have(1)
    (row,) = (await lab.nodes()).values()
    good = lab.settings_with()
    wrong = good.replace("max_nodes = 8", "max_nodes = -8").replace("[timing]", "[timing]\ntick_intervall_s = 3")
    assert await lab.write_settings(wrong) != 0, "systemctl says that the reload failed"

    async def told() -> str | None:
        return await lab.problems() if ProblemCode.SETTINGS_REFUSED in await lab.problem_codes() else None

    words = await lab.until(told, "the reload is refused")
    assert "pools.h100.max_nodes" in words
    assert "timing.tick_intervall_s" in words
    assert set(await lab.nodes()) == {row["machine"]}

    checked = await lab.meshctl("config", "check", "-o", "json")
    assert checked.returncode == 1
    faults = [c for c in json.loads(checked.stdout)["checks"] if c["status"] == "fail"]
    assert {fault["code"] for fault in faults} == {FaultCode.BAD_VALUE, FaultCode.UNKNOWN_KEY}
    assert all("\n" not in fault["text"] for fault in faults)

    assert await lab.write_settings(good) == 0

    async def mended() -> bool:
        return not await lab.problems()

    await lab.until(mended, "the problem is gone")
    assert (await lab.meshctl("config", "check")).returncode == 0


@pytest.mark.any_machines
async def test_toml_that_is_none(lab: Lab) -> None:
    assert await lab.write_settings("[cluster\n") != 0
    checked = await lab.meshctl("config", "check", "-o", "json")
    assert checked.returncode == 1
    (fault,) = json.loads(checked.stdout)["checks"]
    assert fault["code"] == FaultCode.NOT_TOML and fault["name"].endswith("meshd.toml:1")

    async def told() -> bool:
        return ProblemCode.SETTINGS_REFUSED in await lab.problem_codes()

    await lab.until(told, "the reload is refused")


async def test_an_ordinary_user_may_look_and_not_change(lab: Lab) -> None:
    for words in (["status"], ["nodes"], ["events"], ["plan"], ["doctor"]):
        seen = await lab.meshctl(*words, user=USER)
        assert seen.returncode in {0, 1} if words == ["doctor"] else seen.returncode == 0, (words, seen)
    event = await lab.last_event()
    refused = await lab.meshctl("scale", "--gpus", "1", "--yes", user=USER)
    assert refused.returncode == 5, refused
    assert b"meshd" in refused.stderr
    assert not await lab.nodes()
    assert not [e for e in await lab.events(event) if e["kind"] == "target"]

    await lab.head.run("gpasswd", "--add", USER, "meshd")
    try:
        allowed = await lab.meshctl("scale", "--gpus", "0", "--yes", user=USER)
        assert allowed.returncode == 0, allowed
    finally:
        await lab.head.run("gpasswd", "--delete", USER, "meshd")


@pytest.mark.any_machines
async def test_a_faulty_credential_turns_its_provider_off_and_nothing_else(lab: Lab) -> None:
    home = "/etc/meshd/credentials/lambda"
    providers = lab.cluster.options.providers
    assert {"aws", "lambda"} <= set(providers)
    try:
        for spoil in (
            f"printf '' >{home}/api_key",
            f"rm -r {home}; mkdir {home}; mkdir {home}/api_key",
            f"rm -r {home}",
        ):
            await lab.head.shell(spoil)
            await lab.restart_meshd()
            if "printf" in spoil:
                problems = await lab.problems()
                assert ProblemCode.PROVIDER_OFF in await lab.problem_codes()
                assert f"{home}/api_key" in problems
                assert "/run/credentials" not in problems
            offers = json.loads((await lab.meshctl("offers", "--provider", "aws", "-o", "json")).stdout)
            assert offers["offers"], "the other provider works"
    finally:
        await lab.head.shell(f"rm -rf {home}; mkdir -p {home}")
        await lab.enable(*providers)
    assert ProblemCode.PROVIDER_OFF not in await lab.problem_codes()
