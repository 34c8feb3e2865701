from __future__ import annotations

import pytest

from meshd.errors import SlurmError
from meshd.slurm.capabilities import SlurmVersion, capabilities, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [("24.11.5", "24.11.5"),
     ("slurm-wlm 22.05.8\n", "22.05.8"), ("slurm 25.05.0-0rc1", "25.05.0"), ("24.05", "24.05.0")],
)  # fmt: skip
def test_versions_as_they_are_told(text, version):
    assert str(parse_version(text)) == version


def test_what_is_no_version():
    with pytest.raises(SlurmError):
        parse_version("scontrol: fatal: Could not establish a configuration source")


def test_the_node_set_may_change_by_reconfigure_since_23_11():
    rows = [capabilities(SlurmVersion(release)) for release in [(22, 5), (23, 2), (23, 11), (24, 11)]]
    assert [row.reconfigure_may_change_node_set for row in rows] == [False, False, True, True]


def test_a_newer_release_behaves_as_the_newest_known_and_an_older_is_refused():
    assert capabilities(SlurmVersion((27, 5))).release == (25, 5)
    with pytest.raises(SlurmError, match=r"21\.08\.3.*22\.05"):
        capabilities(SlurmVersion((21, 8), 3))
