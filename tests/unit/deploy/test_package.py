"""The package's maintainer scripts, and what a purge does to Slurm's files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from meshd.store.journal import Journal
from tests.unit.slurm.init_of_root import init
from tests.unit.worlds import NOW, Phase, machine

ROOT = Path(__file__).resolve().parents[3]
STEPS = ROOT / "deploy/head/steps.sh"
PACKAGE = ROOT / "deploy/package"
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
CONF = """\
ClusterName=lab
SlurmctldHost=head(100.64.0.1)
SlurmUser=slurm
NodeName=rack1 CPUs=1
PartitionName=p Nodes=rack1
"""


def sh(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-euc", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_maintainer_script_is_clean(name: str, tmp_path: Path) -> None:
    """As the package has it, with the shared steps inside."""
    text = (PACKAGE / name).read_text()
    assert text.count("\n#STEPS#\n") == 1
    script = tmp_path / name
    script.write_text(text.replace("#STEPS#", STEPS.read_text()))
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_the_builder_is_clean() -> None:
    words = ["shellcheck", "-x", "-P", str(ROOT), str(PACKAGE / "build")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["--nonsense"], 2), (["--pythons"], 1)])
def test_the_builder_s_usage(words: list[str], code: int) -> None:
    done = subprocess.run(["sh", str(PACKAGE / "build"), *words], capture_output=True, timeout=60, check=False)
    assert done.returncode == code


def test_the_locks_alone_have_versions() -> None:
    for path in PACKAGE.iterdir():
        assert not re.search(r"[a-z]==\d", path.read_text()), path
    assert "--require-hashes" in (PACKAGE / "build").read_text()


def test_the_locks_do_not_depend_on_python_s_version() -> None:
    """pip takes it from the Python that runs it, and the package is built for several."""
    for name in ("base", "aws", "gce", "build"):
        text = (ROOT / f"deploy/head/requirements/{name}.txt").read_text()
        assert not re.search(r"python_(full_)?version", text), name


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as dpkg does")
def test_a_purge_forgets_no_machine(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.put(machine(Phase.READY, index=1), "phase", "ready", NOW)
    journal.close()
    safe = f"etc={tmp_path}/etc slurm_dir={tmp_path}/s programs_dir={tmp_path}/p slurm_conf_dir={tmp_path}/c"
    done = sh(f". {STEPS}\nstate_dir={tmp_path} {safe}\npurge")
    assert done.returncode == 1 and (tmp_path / "journal.db").exists()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    (root / "etc/slurm").mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nslurm:x:4711:4712::/:/bin/false\n")
    (root / "etc/hostname").write_text("head.example.org\n")
    (root / "etc/slurm/slurm.conf").write_text(CONF)
    return root


def restored(image: Path) -> subprocess.CompletedProcess[str]:
    places = f"slurm_dir={image}/var/lib/meshd-slurm slurm_conf_dir={image}/etc/slurm"
    done = sh(f". {STEPS}\n{places}\nrestore_slurm_files")
    for link in ("nodes.conf", "meshd-gres.conf"):
        if (image / "etc/slurm" / link).is_symlink():  # an image's links lead to the head's own folder
            (image / "etc/slurm" / link).unlink()
    return done


def test_slurm_s_files_are_as_before_meshd(image: Path) -> None:
    conf = image / "etc/slurm/slurm.conf"
    before = {path.name for path in conf.parent.iterdir()}
    init(image)
    assert conf.read_text() != CONF
    owner, mode = conf.stat().st_uid, conf.stat().st_mode
    done = restored(image)
    assert done.returncode == 0, done.stdout + done.stderr
    assert conf.read_text() == CONF and (conf.stat().st_uid, conf.stat().st_mode) == (owner, mode)
    left = {path.name for path in conf.parent.iterdir()} - before
    assert all(re.fullmatch(r".*\.meshd-\d.*", name) for name in left), left


def test_what_somebody_changed_since_stays(image: Path) -> None:
    """Both between two runs of `meshctl init`, and after them."""
    conf = image / "etc/slurm/slurm.conf"
    init(image)
    text = conf.read_text().replace("Include nodes.conf\n", "")
    assert text != conf.read_text()
    conf.write_text("# between\n" + text)
    init(image)
    assert conf.read_text() != "# between\n" + text
    conf.write_text("# after\n" + conf.read_text())
    done = restored(image)
    assert done.returncode == 0, done.stdout + done.stderr
    assert conf.read_text() == "# after\n# between\n" + CONF


def test_a_change_in_the_same_lines_is_left_and_named(image: Path) -> None:
    conf = image / "etc/slurm/slurm.conf"
    init(image)
    text = re.sub(r"^ResumeTimeout=.*$", "ResumeTimeout=77", conf.read_text(), flags=re.M)
    assert "ResumeTimeout=77" in text
    conf.write_text(text)
    done = restored(image)
    assert done.returncode == 1 and str(conf) in done.stdout
    assert conf.read_text() == text
