"""The cases of the contract suite, by subject. `meshd.contract.suite` combines them."""

from __future__ import annotations

import pkgutil

import pytest

# pytest rewrites assertions only in test modules; register the cases, so that a failure shows the values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
