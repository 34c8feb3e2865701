from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshd import errors
from meshd.api import endpoints
from tests.unit.api.sim_head import SimHead, serve
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import on_terminal, start, until


def test_up_and_wait(meshctl: Meshctl, served: SimHead) -> None:
    ran = meshctl("scale", "--gpus", "8", "--wait", "--yes", "--timeout", "60s")
    assert ran.code == 0, ran.err
    assert ran.out == ""
    assert "pool a100: 0 -> 8 GPUs" in ran.err
    assert "price: $0.00 -> $20.00 per hour (+$20.00)" in ran.err
    assert re.search(r"lab-a100-1-\w{6}: .*ready", ran.err)
    assert "done: pool a100 has 8 GPUs" in ran.err
    assert "\x1b" not in ran.err
    assert served.phases == ["ready", "ready"]


def test_wait_in_json_prints_one_document(meshctl: Meshctl, served: SimHead) -> None:
    ran = meshctl("scale", "--gpus", "5", "--wait", "--yes", "-o", "json")
    document = ran.json()
    assert ran.code == 0
    assert document["schema_version"] == 1
    assert document["outcome"] == "reached"
    assert document["answer"]["schema_version"] == 1
    assert sorted(n["slot"] for n in document["nodes"]) == ["a100-1", "a100-2"]


def test_down_names_the_jobs_and_waits_for_them(meshctl: Meshctl, served: SimHead) -> None:
    served.grow(2)
    served.world.jobs.update({"a100-1": ("4711", 1e9), "a100-2": ("4712", 1e9)})
    ran = meshctl("scale", "--gpus", "0", "--wait", "--yes", "--timeout", "2s")
    assert ran.code == 7
    assert "a100-1 waits for job 4711" in ran.err
    assert "a100-2 waits for job 4712" in ran.err
    assert "draining (waits for job 4711)" in ran.err
    served.world.jobs.clear()
    ran = meshctl("scale", "--gpus", "0", "--wait", "--yes")
    assert ran.code == 0, ran.err
    until(lambda: served.phases == [])


def test_dry_run_changes_nothing(meshctl: Meshctl, served: SimHead) -> None:
    ran = meshctl("scale", "--gpus", "8", "--dry-run", "-o", "json")
    assert (ran.code, ran.json()["outcome"], ran.err) == (0, "planned", "")
    assert served.writers == []
    assert meshctl("scale", "--gpus", "8", "--dry-run").out.startswith("pool a100: 0 -> 8 GPUs\n")


def test_without_a_terminal_it_needs_yes(meshctl: Meshctl, served: SimHead) -> None:
    ran = meshctl("scale", "--gpus", "8", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (2, "needs_yes")
    assert "$20.00" in ran.json()["error"] and "--yes" in ran.json()["cure"]
    assert served.writers == []
    served.grow(1)
    assert meshctl("scale", "--gpus", "4").code == 0  # neither costs nor removes
    ran = meshctl("scale", "--gpus", "0", "-o", "json")
    assert ran.code == 2
    assert ran.json()["kind"] == "needs_yes"


def test_gives_up_early(meshctl: Meshctl, served: SimHead) -> None:
    served.sell_out()
    began = time.monotonic()
    ran = meshctl("scale", "--gpus", "8", "--wait", "--yes", "--timeout", "60s", "-o", "json")
    assert time.monotonic() - began < 50
    assert ran.code == 1
    assert ran.json()["outcome"] == "gave_up"
    assert "sold out" in ran.json()["reason"], "in the cloud's own words"
    assert "allow another provider" in ran.err


def test_a_part_of_the_target(meshctl: Meshctl, served: SimHead) -> None:
    served.sell_out(left=1)
    assert meshctl("scale", "--gpus", "8", "--wait", "--yes", "--timeout", "60s").code == 6


def test_a_refused_target(meshctl: Meshctl, served: SimHead) -> None:
    ran = meshctl("scale", "--gpus", "999", "--yes", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (1, "refused")
    error = ran.json()
    assert ran.err == f"error: {error['error']}\n  do: {error['cure']}\n"


def test_which_pool(meshctl: Meshctl, served: SimHead) -> None:
    served.daemon.pools["h100"] = replace(served.daemon.pool, name="h100")
    ran = meshctl("scale", "--gpus", "1", "--yes", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (2, "bad_request")
    assert meshctl("scale", "--gpus", "4", "--pool", "h100", "--yes", "--wait").code == 0


COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]m")

AS_NOBODY = """
import os, sys
from meshd.cli.main import cli
for output in "json", "table":  # loads what this user could not
    cli(["--socket", *sys.argv[1:], "--dry-run", "-o", output], standalone_mode=False)
print("now as nobody", flush=True)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
cli(["--socket", *sys.argv[1:]])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_the_error_for_a_reader_names_the_group(socket_path: Path, served: SimHead) -> None:
    socket_path.parent.chmod(0o755)
    argv = [sys.executable, "-c", AS_NOBODY, str(socket_path), "scale", "--gpus", "0", "-o", "json"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout.split("now as nobody")[1])["kind"] == "denied"
    assert "usermod -aG no-such-group" in done.stderr
    assert served.writers == []


def test_somebody_else_sets_another_target(socket_path: Path, served: SimHead) -> None:
    served.frozen = True
    process = start(socket_path, "scale", "--gpus", "8", "--wait", "--yes", "-o", "json")
    until(lambda: served.target is not None)
    served.set_target(4)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert json.loads(out)["outcome"] == "superseded"
    assert "4 GPUs" in err, "the other target"


def test_ctrl_c_ends_the_wait_not_the_work(socket_path: Path, served: SimHead) -> None:
    served.frozen = True
    process = start(socket_path, "scale", "--gpus", "8", "--wait", "--yes", "-o", "json")
    until(lambda: served.waiting[endpoints.EVENTS])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["outcome"] == "interrupted"
    assert "`meshctl scale --pool a100 --gpus 0`" in err, "how to undo it"
    assert "Traceback" not in err
    served.frozen = False
    until(lambda: served.phases == ["ready", "ready"])


def test_the_daemon_restarts_while_somebody_waits(head: SimHead, socket_path: Path) -> None:
    head.frozen = True
    with serve(head, socket_path, own_uid=os.getuid()):
        process = start(socket_path, "scale", "--gpus", "4", "--wait", "--yes")
        until(lambda: head.waiting[endpoints.EVENTS])
    assert process.stderr is not None
    assert any("it may be restarting" in line for line in process.stderr)
    head.frozen = False
    with serve(head, socket_path, own_uid=os.getuid()):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_on_a_terminal_it_asks_and_draws(socket_path: Path, served: SimHead) -> None:
    code, shown = on_terminal(socket_path, ["scale", "--gpus", "4", "--wait"], "y\n")
    assert code == 0, shown
    assert "$10.00" in shown and "[y/N]" in shown
    assert "1 of 1" not in shown
    assert "of 4 GPUs ready" in shown
    assert COLOUR.search(shown)
    assert "done: pool a100 has 4 GPUs" in shown
    code, shown = on_terminal(socket_path, ["scale", "--gpus", "0"], "n\n")
    assert code == 1
    assert served.target is not None and served.target.gpus == 4
    code, shown = on_terminal(socket_path, ["scale", "--gpus", "0"], "\x03")
    assert code == 130, shown
    assert served.target is not None and served.target.gpus == 4


def test_no_color(socket_path: Path, served: SimHead) -> None:
    served.grow(1)
    _, plain = on_terminal(socket_path, ["nodes"], "", NO_COLOR="1")
    assert "ready" in plain
    assert not COLOUR.search(plain)


def test_a_slurm_error_reaches_people(meshctl: Meshctl, served: SimHead) -> None:
    error = errors.SlurmError("scontrol: unable to contact slurm controller")
    served.give(endpoints.SCALE, error)
    ran = meshctl("scale", "--gpus", "4", "--yes", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (1, "slurm")
    assert str(error) in ran.json()["error"] and "`scontrol ping`" in ran.json()["cure"]


def test_only_what_is_given_reaches_the_daemon(meshctl: Meshctl, served: SimHead) -> None:
    def options(*argv: str) -> dict[str, Any]:
        assert meshctl("scale", "--gpus", "1", "--dry-run", *argv).code == 0
        return served.asked(endpoints.SCALE)[-1].model_dump(exclude_unset=True, exclude={"gpus", "dry_run"})

    assert options() == {}
    assert options("--no-spread", "--region", "r1") == {"spread": False, "regions": ("r1",)}
    assert options("--unset", "max-price", "--unset", "spread", "--unset", "region") == {
        "max_usd_per_gpu_hour": None, "spread": False, "regions": (),
    }  # fmt: skip
    assert options("--reset", "--spot", "only") == {"reset": True, "spot": "only"}
    assert meshctl("scale", "--gpus", "1", "--unset", "spot", "--spot", "only").code == 2
    assert meshctl("scale", "--gpus", "1", "--unset", "nonsense").code == 2
    before = len(served.asked(endpoints.OFFERS))
    assert options("--refresh") == {}
    assert [query.refresh for query in served.asked(endpoints.OFFERS)[before:]] == [True]
