"""The runner of the tests: two lanes side by side, one verdict."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.lanes import ROOT, Lane, lanes_of_all, pytest_lane, run
from tests.waiting import until

GOOD = """
    import pytest
    def test_one(): pass
    @pytest.mark.skip(reason="here")
    def test_two(): pass
"""
BAD = "def test_bad(): assert False"


@pytest.fixture(autouse=True)
def bare_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lanes of these tests are bare: what plugins take to load is not what is tested."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def lane(tmp_path: Path, name: str, text: str) -> Lane:
    """A lane over one file of tests, with no settings of ours."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(textwrap.dedent(text))
    return pytest_lane(
        name, tmp_path, "-p", "no:hypothesispytest", "--rootdir", str(folder), str(folder / "test_it.py")
    )


async def closing(tmp_path: Path, *lanes: Lane) -> tuple[int, list[str]]:
    out = io.StringIO()
    status = await run(lanes, tmp_path, out)
    return status, out.getvalue().splitlines()


async def test_the_last_line_adds_up_both(tmp_path: Path) -> None:
    lanes = lane(tmp_path, "left", GOOD), lane(tmp_path, "right", GOOD)
    status, said = await closing(tmp_path, *lanes)
    assert status == 0
    assert " 2 passed, 2 skipped in " in said[-1]
    assert said[-1].startswith("===") and said[-1].endswith("===")
    for one in lanes:
        log = (tmp_path / f"{one.name}.log").read_text().splitlines()
        assert log[-1] in said, "the closing line of each lane is shown as pytest wrote it"
    assert any("test_it" in line and line.endswith("test_one") for line in said), "the slowest tests"


async def test_a_bad_lane_spoils_the_whole_and_is_named(tmp_path: Path) -> None:
    bad = {
        "fails": (BAD, 1),
        "cannot-be-read": ("import no_such_module_at_all", 2),
        "has-none": ("", 5),
        "breaks-off": ("import os; os._exit(0)", 0),
        "skips-all": ("import pytest; pytest.skip('all', allow_module_level=True)", 5),
    }
    lanes = [lane(tmp_path, name, text) for name, (text, _) in bad.items()]
    status, said = await closing(tmp_path, lane(tmp_path, "good", GOOD), *lanes, Lane("checks", ["false"], tests=False))
    assert status == 1
    named = {
        words[0]: int(words[1].split(":")[0]) for line in said if len(words := line.split(" failed, with status ")) > 1
    }
    assert named == {name: code for name, (_, code) in bad.items()} | {"checks": 1}
    # The lanes that broke off, ran nothing or have no tests count as an error each.
    assert " 1 failed, 1 passed, 2 skipped, 5 errors in " in said[-1]


async def test_a_lane_that_breaks_off_alone_is_a_failure(tmp_path: Path) -> None:
    status, said = await closing(
        tmp_path, lane(tmp_path, "left", "import os; os._exit(0)"), Lane("checks", ["true"], tests=False)
    )
    assert (status, " 1 error in " in said[-1]) == (1, True)


HURRIED_WORKERS = """
from tests.workers import Workers
from xdist.workermanage import NodeManager
NodeManager.EXIT_TIMEOUT = 0.1
def pytest_configure(config): config.pluginmanager.register(Workers())
"""


async def test_an_interrupt_reaches_each_lane_once_and_is_waited_for(tmp_path: Path) -> None:
    """Each lane takes down what its fixture made, even when the user presses Ctrl-C twice; so does one with workers."""
    slow = """
        import pathlib, time, pytest
        @pytest.fixture(scope="session")
        def made():
            mark = pathlib.Path(__file__).with_name("made")
            mark.touch()
            yield
            time.sleep(0.5)
            mark.unlink()
        def test_long(made): time.sleep(250)
    """
    lanes = lane(tmp_path, "left", slow), lane(tmp_path, "right", slow)
    (tmp_path / "right" / "conftest.py").write_text(HURRIED_WORKERS)
    lanes = lanes[0], Lane("right", (*lanes[1].argv, "-p", "xdist.plugin", "-n", "1"))
    marks = [tmp_path / one.name / "made" for one in lanes]
    script = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from tests.lanes import Lane, run
        lanes = [Lane(name, argv) for name, argv in {[(one.name, tuple(one.argv)) for one in lanes]!r}]
        sys.exit(asyncio.run(run(lanes, Path({str(tmp_path)!r}))))
    """)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )

    async def there() -> list[bool]:
        return [mark.exists() for mark in marks]

    await until(there, all, "both lanes are in their test", within_s=200.0)
    os.killpg(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)
    said, _ = await process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert await there() == [False, False]
    assert said.decode().splitlines()[-1].startswith("===")


def test_no_folder_is_left_out() -> None:
    """What one lane takes the other ignores, and nothing else is ignored."""
    machines, rest = (one.argv for one in lanes_of_all())
    ignored = {argument.removeprefix("--ignore=") for argument in rest if argument.startswith("--ignore=")}
    assert ignored == {argument for argument in machines if argument.startswith("tests/")}
    assert "tests" in rest
    assert all((ROOT / folder).is_dir() for folder in ignored)
