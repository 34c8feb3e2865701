"""Speed: the stand-ins' tables of instance types are large and live for the whole run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.client import ClientCreator


@pytest.fixture(scope="session", autouse=True)
def spare_the_collector() -> Iterator[None]:
    """Collect seldom: each full collection walks the SDK's and moto's tables, for a third of a second."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    yield
    gc.set_threshold(*before)


@pytest.fixture(scope="session", autouse=True)
def make_each_class_once() -> Iterator[None]:
    """The SDK makes the class of a service's client, of 700 methods, anew for each client: it is always the same."""
    make, made = ClientCreator._create_client_class, dict[str, Any]()

    def once(creator: ClientCreator, service_name: str, service_model: Any) -> Any:
        if service_name not in made:
            made[service_name] = make(creator, service_name, service_model)
        return made[service_name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientCreator, "_create_client_class", once)
        yield
