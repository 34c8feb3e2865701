from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from meshd import errors
from tests.unit.api.memory_desk import MemoryDesk
from tests.unit.api.memory_fleet import Pool
from tests.unit.api.served import Served, serve
from tests.unit.cli.conftest import Meshctl
from tests.unit.cli.helpers import on_terminal, start, until


def test_up_and_wait(meshctl: Meshctl, served: Served) -> None:
    ran = meshctl("scale", "--gpus", "8", "--wait", "--yes", "--timeout", "60s")
    assert ran.code == 0, ran.err
    assert ran.out == ""
    assert "pool a100: 0 -> 8 GPUs" in ran.err
    assert "price: $0.00 -> $20.00 per hour (+$20.00)" in ran.err
    assert re.search(r"lab-a100-1-aaaaa1: .*ready", ran.err)
    assert "done: pool a100 has 8 GPUs" in ran.err
    assert "\x1b" not in ran.err
    assert [b.phase for b in served.desk.boxes] == ["ready", "ready"]


def test_wait_in_json_prints_one_document(meshctl: Meshctl, served: Served) -> None:
    ran = meshctl("scale", "--gpus", "5", "--wait", "--yes", "-o", "json")
    document = ran.json()
    assert ran.code == 0
    assert document["schema_version"] == 1
    assert document["outcome"] == "reached"
    assert document["answer"]["schema_version"] == 1
    assert sorted(n["slot"] for n in document["nodes"]) == ["a100-1", "a100-2"]


def test_down_names_the_jobs_and_waits_for_them(meshctl: Meshctl, served: Served) -> None:
    served.desk.pools["a100"].target = 8
    for index in (1, 2):
        served.desk.add_ready("a100", index)
    served.desk.jobs = {"a100-1": ["4711"], "a100-2": ["4712", "4713"]}
    ran = meshctl("scale", "--gpus", "0", "--wait", "--yes", "--timeout", "2s")
    assert ran.code == 7
    assert "a100-1 waits for job 4711" in ran.err
    assert "a100-2 waits for job 4712, 4713" in ran.err
    assert "draining (waits for job 4711)" in ran.err
    served.desk.jobs.clear()
    ran = meshctl("scale", "--gpus", "0", "--wait", "--yes")
    assert ran.code == 0, ran.err
    until(lambda: served.desk.boxes == [])


def test_dry_run_changes_nothing(meshctl: Meshctl, served: Served) -> None:
    ran = meshctl("scale", "--gpus", "8", "--dry-run", "-o", "json")
    assert (ran.code, ran.json()["outcome"], ran.err) == (0, "planned", "")
    assert served.desk.actors == []
    assert meshctl("scale", "--gpus", "8", "--dry-run").out.startswith("pool a100: 0 -> 8 GPUs\n")


def test_without_a_terminal_it_needs_yes(meshctl: Meshctl, served: Served) -> None:
    ran = meshctl("scale", "--gpus", "8", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (2, "needs_yes")
    assert "$20.00" in ran.json()["error"] and "--yes" in ran.json()["cure"]
    assert served.desk.actors == []
    served.desk.pools["a100"].target = 4
    served.desk.add_ready("a100", 1)
    assert meshctl("scale", "--gpus", "4").code == 0  # neither costs nor removes
    ran = meshctl("scale", "--gpus", "0", "-o", "json")
    assert ran.code == 2
    assert ran.json()["kind"] == "needs_yes"


def test_gives_up_early(meshctl: Meshctl, served: Served) -> None:
    served.desk.no_capacity = True
    began = time.monotonic()
    ran = meshctl("scale", "--gpus", "8", "--wait", "--yes", "--timeout", "60s", "-o", "json")
    assert time.monotonic() - began < 50
    assert ran.code == 1
    assert ran.json()["outcome"] == "gave_up"
    problem = next(one for one in served.desk.problems if one.blocking)
    assert ran.json()["reason"] == problem.text
    assert problem.cure in ran.err


def test_a_part_of_the_target(meshctl: Meshctl, served: Served) -> None:
    desk = served.desk
    desk.add_ready("a100", 1)
    desk.no_capacity = True
    assert meshctl("scale", "--gpus", "8", "--wait", "--yes", "--timeout", "60s").code == 6


def test_a_refused_target(meshctl: Meshctl, served: Served) -> None:
    ran = meshctl("scale", "--gpus", "999", "--yes", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (1, "refused")
    error = ran.json()
    assert ran.err == f"error: {error['error']}\n  do: {error['cure']}\n"


def test_which_pool(meshctl: Meshctl, served: Served) -> None:
    served.desk.pools["h100"] = Pool()
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
def test_the_error_for_a_reader_names_the_group(socket_path: Path, served: Served) -> None:
    socket_path.parent.chmod(0o755)
    argv = [sys.executable, "-c", AS_NOBODY, str(socket_path), "scale", "--gpus", "0", "-o", "json"]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout.split("now as nobody")[1])["kind"] == "denied"
    assert "usermod -aG no-such-group" in done.stderr
    assert served.desk.actors == []


def test_somebody_else_sets_another_target(socket_path: Path, served: Served) -> None:
    served.desk.frozen = True
    process = start(socket_path, "scale", "--gpus", "8", "--wait", "--yes", "-o", "json")
    until(lambda: served.desk.pools["a100"].target_id is not None)
    served.desk.pools["a100"].target_id, served.desk.pools["a100"].target = 99, 4
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert json.loads(out)["outcome"] == "superseded"
    assert "4 GPUs" in err, "the other target"


def test_ctrl_c_ends_the_wait_not_the_work(socket_path: Path, served: Served) -> None:
    served.desk.frozen = True
    process = start(socket_path, "scale", "--gpus", "8", "--wait", "--yes", "-o", "json")
    until(lambda: served.desk.waiting)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["outcome"] == "interrupted"
    assert "`meshctl scale --pool a100 --gpus 0`" in err, "how to undo it"
    assert "Traceback" not in err
    served.desk.frozen = False
    until(lambda: [b.phase for b in served.desk.boxes] == ["ready", "ready"])


def test_the_daemon_restarts_while_somebody_waits(desk: MemoryDesk, socket_path: Path) -> None:
    desk.frozen = True
    with serve(desk, socket_path, own_uid=os.getuid()):
        process = start(socket_path, "scale", "--gpus", "4", "--wait", "--yes")
        until(lambda: desk.waiting)
    after = MemoryDesk(pools=desk.pools)
    assert process.stderr is not None
    assert any("it may be restarting" in line for line in process.stderr)
    with serve(after, socket_path, own_uid=os.getuid()):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_on_a_terminal_it_asks_and_draws(socket_path: Path, served: Served) -> None:
    code, shown = on_terminal(socket_path, ["scale", "--gpus", "4", "--wait"], "y\n")
    assert code == 0, shown
    assert "$10.00" in shown and "[y/N]" in shown
    assert "1 of 1" not in shown
    assert "of 4 GPUs ready" in shown
    assert COLOUR.search(shown)
    assert "done: pool a100 has 4 GPUs" in shown
    code, shown = on_terminal(socket_path, ["scale", "--gpus", "0"], "n\n")
    assert code == 1
    assert served.desk.pools["a100"].target == 4
    code, shown = on_terminal(socket_path, ["scale", "--gpus", "0"], "\x03")
    assert code == 130, shown
    assert served.desk.pools["a100"].target == 4


def test_no_color(socket_path: Path, served: Served) -> None:
    served.desk.add_ready("a100", 1)
    _, plain = on_terminal(socket_path, ["nodes"], "", NO_COLOR="1")
    assert "ready" in plain
    assert not COLOUR.search(plain)


def test_a_slurm_error_reaches_people(meshctl: Meshctl, served: Served) -> None:
    served.desk.error = errors.SlurmError("scontrol: unable to contact slurm controller")
    ran = meshctl("scale", "--gpus", "4", "--yes", "-o", "json")
    assert (ran.code, ran.json()["kind"]) == (1, "slurm")
    assert str(served.desk.error) in ran.json()["error"] and "`scontrol ping`" in ran.json()["cure"]


def test_only_what_is_given_reaches_the_daemon(meshctl: Meshctl, served: Served) -> None:
    def options(*argv: str) -> dict[str, Any]:
        assert meshctl("scale", "--gpus", "1", "--dry-run", *argv).code == 0
        return served.desk.scale_requests[-1].model_dump(exclude_unset=True, exclude={"gpus", "dry_run"})

    assert options() == {}
    assert options("--no-spread", "--region", "r1") == {"spread": False, "regions": ("r1",)}
    assert options("--unset", "max-price", "--unset", "spread", "--unset", "region") == {
        "max_usd_per_gpu_hour": None, "spread": False, "regions": (),
    }  # fmt: skip
    assert options("--reset", "--spot", "only") == {"reset": True, "spot": "only"}
    assert meshctl("scale", "--gpus", "1", "--unset", "spot", "--spot", "only").code == 2
    assert meshctl("scale", "--gpus", "1", "--unset", "nonsense").code == 2
    before = len(served.desk.queries)
    assert options("--refresh") == {}
    assert [query.refresh for query in served.desk.queries[before:]] == [True]
