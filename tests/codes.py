"""What must fail, and with which code: the wording is free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from meshd.api.faults import ApiFault
from meshd.codes import FaultCode, JoinCode, RefusalCode
from meshd.errors import ConfigError, JoinRefused


@contextmanager
def refused(code: RefusalCode) -> Iterator[pytest.ExceptionInfo[ApiFault]]:
    """The body is refused by the API with this code."""
    with pytest.raises(ApiFault) as caught:
        yield caught
    assert caught.value.code is code, caught.value
    assert caught.value.cure


@contextmanager
def join_refused(code: JoinCode, *, fatal: bool = True) -> Iterator[pytest.ExceptionInfo[JoinRefused]]:
    """The body is refused by the head with this code; `fatal`: for good."""
    with pytest.raises(JoinRefused) as caught:
        yield caught
    assert (caught.value.code, caught.value.fatal) == (code, fatal), caught.value


@contextmanager
def faulty(*codes: FaultCode) -> Iterator[pytest.ExceptionInfo[ConfigError]]:
    """The body finds settings or a secret with these faults, in this order."""
    with pytest.raises(ConfigError) as caught:
        yield caught
    assert [fault.code for fault in caught.value.faults] == list(codes), caught.value
