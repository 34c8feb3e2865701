"""`meshctl push` and `pull` as an ordinary user: pods and a VM, without a share, an ssh key or root."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from deploy.sandbox import proc
from tests.e2e.pods import HOME, Fleet

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

WORK = f"{HOME}/copies"
MAKE = f"""
rm -rf {WORK}; mkdir -p "{WORK}/od d" {WORK}/many; cd "{WORK}/od d"
echo 1 >'a b'; echo 2 >"$(printf 'new\\nline')"; echo 3 >"it's \\"q\\" \\$HOME *?[x]"; echo 4 >-n; echo 5 >a:b
printf 6 >"$(printf '\\377\\376')"; ln -s 'a b' link; mkdir empty; chmod 640 'a b'; touch -d 2001-02-03 'a b'
printf '\\0\\377\\r\\n\\004\\003' >bytes
cd ../many; for i in $(seq 1000); do echo $i >f$i; done
"""
LOOK = "find . -mindepth 1 -printf '%P %m %y %l %s %TY-%Tm-%Td\\n' -type f -exec md5sum {} + | LC_ALL=C sort"


async def copy(fleet: Fleet, *words: str, expect: int = 0) -> str:
    """`meshctl push` or `pull` by the user, in their home."""
    argv = ["runuser", "-u", "alice", "--", "env", "-C", WORK, f"HOME={HOME}", "meshctl", *words]
    done: proc.Result = await fleet.lab.head.run(*argv, timeout_s=180, check=False)
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.text}\n{done.stderr.decode()}"
    return f"{done.text}\n{done.stderr.decode()}"


async def by_user(fleet: Fleet, script: str) -> str:
    return (await fleet.lab.head.run("runuser", "-u", "alice", "--", "sh", "-ec", script, timeout_s=120)).text


async def test_files_go_to_pods_and_machines_and_come_back(fleet: Fleet, figure: Callable[[str], None]) -> None:
    await by_user(fleet, MAKE)
    told = await by_user(fleet, f"cd '{WORK}/od d'; {LOOK}")
    for slot in (fleet.pods[0], fleet.vm):
        # Without a job there, in a small one of its own.
        await copy(fleet, "push", "od d", f"{slot}:/tmp/c/x y/")
        assert await fleet.sh(slot, f"cd '/tmp/c/x y/od d'; {LOOK}") == told
        await copy(fleet, "pull", f"{slot}:/tmp/c/x y/od d/", f"back {slot}")
        assert await by_user(fleet, f"cd '{WORK}/back {slot}'; {LOOK}") == told
        began = time.monotonic()
        await copy(fleet, "push", "many", f"{slot}:/tmp/c/")
        figure(f"1,000 small files to {slot}: {time.monotonic() - began:.1f} s")
        assert await fleet.sh(slot, "ls /tmp/c/many | wc -l") == "1000"
    assert (await fleet.lab.head.run("squeue", "-h")).text == ""


async def test_all_nodes_of_a_job_at_once(fleet: Fleet, figure: Callable[[str], None]) -> None:
    lab = fleet.lab
    await by_user(fleet, f"{MAKE}head -c 100000000 /dev/urandom >{WORK}/big")
    job = await lab.sbatch("sleep 600", "--gpus=3", "-N3")
    await lab.running(job)
    began = time.monotonic()
    await copy(fleet, "push", "--job", job, "big", ":/tmp/c/")
    figure(f"100 MB to two pods and a VM at once: {time.monotonic() - began:.1f} s")
    sums = await fleet.on_all("md5sum </tmp/c/big; stat -c %U /tmp/c/big")
    assert set(sums.values()) == {f"{(await by_user(fleet, f'md5sum <{WORK}/big'))}\nalice"}

    # A transfer that was cut off goes on with what is there.
    pod = fleet.pods[0]
    await fleet.sh(
        pod, "cd /tmp/c; mkdir .rsync-partial; head -c 90000000 big >.rsync-partial/big; rm big; chown -R alice ."
    )
    await copy(fleet, "push", "big", f"{pod}:/tmp/c/")
    assert await fleet.sh(
        pod, "md5sum </tmp/c/big; stat -c %U /tmp/c/big; ls -A /tmp/c | grep -c partial", check=False
    ) == (f"{sums[pod]}\n0")

    await copy(fleet, "pull", "--job", job, ":/tmp/c/big", "all")
    there = await by_user(fleet, f"cd {WORK}/all; for n in *; do echo $n $(md5sum <$n/big); done")
    assert [line.split()[0] for line in there.splitlines()] == sorted(fleet.slots)
    assert len({line.split()[1] for line in there.splitlines()}) == 1

    # What cannot be done is said: rsync's exit code, and no hang.
    assert "No such file" in await copy(fleet, "pull", f"{pod}:/tmp/nothing", ".", expect=23)
    assert "Permission denied" in await copy(fleet, "push", "big", f"{pod}:/root/", expect=3)
    await copy(fleet, "push", "big", "nowhere-1:/tmp/", expect=2)
    await copy(fleet, "push", "--job", "99999", "big", ":/tmp/", expect=1)
    await lab.head.run("scancel", job)
