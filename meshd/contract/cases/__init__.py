"""The cases of the contract suite, by subject. `meshd.contract.suite` puts them together."""

from __future__ import annotations

import pkgutil

import pytest

# So that a case that fails shows the values in it, also when its module is no test module of the project that runs it.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
