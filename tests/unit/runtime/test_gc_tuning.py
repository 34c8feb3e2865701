"""The garbage collector rests while somebody parses, and wakes once the last of them is done."""

from __future__ import annotations

import gc

import pytest

from meshd.runtime.gc_tuning import gc_paused


def test_it_wakes_after_the_last_who_asked_and_after_an_error() -> None:
    assert gc.isenabled()
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="bad page"), gc_paused():
        raise ValueError("bad page")
    assert gc.isenabled()
