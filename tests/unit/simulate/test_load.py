"""Jobs as a file describes them, and what goes wrong meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshd.errors import ConfigError
from meshd.simulate import load, read
from meshd.simulate.load import Scenario, TooManyJobs, jobs_of

HEAD = '[[jobs]]\npool = "a100"\nlasts = "1h"\n'


def scenario(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "load.toml"
    path.write_text(text)
    return read.scenario_of(path)


def test_jobs_come_at_their_times_in_their_order(tmp_path: Path) -> None:
    text = f'lasts = "2h"\n{HEAD}every = "30m"\n[[jobs]]\npool = "b"\nat = ["45m"]\nlasts = 60\ncount = 2\nnodes = 3\n'
    jobs = jobs_of(scenario(tmp_path, text), 0)
    assert [(job.pool, job.at_s, job.run_s, job.nodes) for job in jobs] == [
        ("a100", 0, 3600, 1), ("a100", 1800, 3600, 1), ("b", 2700, 60, 3), ("b", 2700, 60, 3),
        ("a100", 3600, 3600, 1), ("a100", 5400, 3600, 1),
    ]  # fmt: skip
    assert [job.id for job in jobs] == ["1", "2", "3", "4", "5", "6"]


def test_chance_follows_from_the_seed_alone(tmp_path: Path) -> None:
    given = scenario(tmp_path, 'lasts = "10d"\n[[jobs]]\npool = "a"\nper_hour = 5\nlasts_between = ["1m", "2m"]\n')
    assert jobs_of(given, 1) == jobs_of(given, 1) != jobs_of(given, 2)
    assert 1000 < len(jobs_of(given, 1)) < 1400
    assert all(60 <= job.run_s <= 120 for job in jobs_of(given, 1))


def test_jobs_come_between_from_and_until(tmp_path: Path) -> None:
    jobs = jobs_of(scenario(tmp_path, f'lasts = "1d"\n{HEAD}per_hour = 50\nfrom = "2h"\nuntil = "3h"\n'), 0)
    assert jobs
    assert all(7200 <= job.at_s < 10800 for job in jobs)


def test_a_load_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "JOBS_MAX", 100)
    with pytest.raises(TooManyJobs, match="100"):
        jobs_of(scenario(tmp_path, f'lasts = "7d"\n{HEAD}every = "1m"\n'), 0)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        (f"{HEAD}every = \n", 4, ""),
        (f'{HEAD}every = "1h"\nper_hour = 2\n', 1, "per_hour"),
        (f"{HEAD}", 1, "per_hour"),
        ('[[jobs]]\npool = "a"\nevery = "1h"\n', 1, "lasts"),
        (f'{HEAD}every = "soon"\n', 4, "30m"),
        (f'{HEAD}every = "1h"\nnodes = -1\n', 5, "nodes"),
        (f'{HEAD}every = "1h"\nnodse = 1\n', 5, "nodse"),
        ('\n[[faults]]\nkind = "flood"\n', 3, "flood"),
        (f'{HEAD}every = "1h"\n{HEAD}every = "1h"\nnodes = 0\n', 9, "nodes"),
        ('lasts = "93d"\n', 1, "lasts"),
        ('[cloud]\nboot = ["1s"]\n', 2, "boot"),
        ('\n[cloud]\nboot = ["3m", "1m"]\n', 2, "boot"),
        (f'{HEAD}every = "1m"\nfrom = "2h"\nuntil = "1h"\n', 1, "until"),
        (f'{HEAD}at = ["1h"]\nuntil = "2h"\n', 1, "at"),
    ],
)
def test_a_fault_names_its_line(tmp_path: Path, text: str, line: int, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenario(tmp_path, text)
    assert [fault.line for fault in caught.value.faults] == [line]
    assert word in str(caught.value)


@pytest.mark.parametrize("when", ['at = ["3h"]', 'every = "1m"\nfrom = "2h"'])
def test_jobs_that_come_after_the_load_is_over_are_a_fault(tmp_path: Path, when: str) -> None:
    with pytest.raises(ConfigError, match=r"jobs\[1\]"):
        scenario(tmp_path, f'lasts = "2h"\n{HEAD}at = ["2h"]\n{HEAD}{when}\n')


def test_a_file_of_faults_has_no_jobs(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text('[[faults]]\nkind = "outage"\n[targets]\na100 = 8\n[cloud]\nboot = ["1m", "2m"]\n')
    first = scenario(tmp_path, f'{HEAD}every = "1h"\n[targets]\na100 = 1\nb = 2\n')
    both = read.with_faults(first, path)
    assert (both.jobs, len(both.faults), both.targets, both.cloud.boot) == (
        first.jobs,
        1,
        {"a100": 8, "b": 2},
        (60, 120),
    )
    path.write_text(f'{HEAD}every = "1h"\n')
    with pytest.raises(ConfigError, match="jobs"):
        read.with_faults(first, path)


def test_a_file_has_a_bound(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 MiB"):
        scenario(tmp_path, "#" * (read.TOML_MAX_B + 1))
    with pytest.raises(ConfigError, match="no file"):
        read.scenario_of(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read.scenario_of(tmp_path / "none")


def test_a_fault_holds_for_its_time_and_its_offers(tmp_path: Path) -> None:
    text = '[[faults]]\nkind = "no_capacity"\noffer = "aws/*/p5.*"\nfrom = "1h"\nfor = "1h"\n'
    (fault,) = scenario(tmp_path, text).faults
    assert [fault.holds(at_s, "aws", "aws/us-east-1/p5.48xlarge") for at_s in (3599, 3600, 7199, 7200)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert not fault.holds(4000, "aws", "aws/us-east-1/g5.xlarge")
    assert fault.edges == (3600, 7200)


def test_a_fault_that_concerns_nothing_is_known(tmp_path: Path) -> None:
    kinds = 'kind = "no_capacity"\noffer = "aws/*/p5.*"', 'kind = "spot_ends"', 'kind = "outage"\nprovider = "gce"'
    faults = scenario(tmp_path, "".join(f"[[faults]]\n{kind}\n" for kind in kinds)).faults
    concerned = [
        [fault.concerns(provider, offer, spot=spot) for fault in faults]
        for provider, offer, spot in (
            ("aws", "aws/us-east-1/p5.48xlarge", False), ("aws", "aws/us-east-1/g5.xlarge/spot", True),
            ("gce", "gce/us-central1/g2-standard-4", False),
        )
    ]  # fmt: skip
    assert concerned == [[True, False, False], [False, True, False], [False, False, True]]
