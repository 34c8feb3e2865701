"""The table of endpoints, and what is made from it: the OpenAPI document and the table in docs/api.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator, validate
from pydantic import BaseModel

from meshd.api import openapi, schema
from meshd.api.endpoints import ENDPOINTS, EVENTS, Endpoint, ReadByMembers, Write
from meshd.api.handlers import Handlers
from meshd.api.schema import DOCUMENTS

PAGE = Path(__file__).parents[3] / "docs/api.md"


def test_names_and_pages_are_unique() -> None:
    pages = [(one.method, path) for one in ENDPOINTS for path in (one.path, *one.formerly)]
    assert len(set(pages)) == len(pages)
    assert len({one.name for one in ENDPOINTS}) == len(ENDPOINTS)


def test_every_model_is_in_the_published_schema() -> None:
    models = {one.request for one in ENDPOINTS if one.method == "POST"} | {one.answer for one in ENDPOINTS}
    assert models <= {*DOCUMENTS, None}


def test_reads_have_no_body_that_changes_something() -> None:
    assert all(isinstance(one, Write) or one.method == "GET" or one.name == "preview" for one in ENDPOINTS)
    assert [one for one in ENDPOINTS if one.long_poll] == [EVENTS]


def test_the_document_is_openapi() -> None:
    document = json.loads(json.dumps(openapi.document()))
    validate(document, cls=OpenAPIV31SpecValidator)
    assert document["paths"]["/v1/scale"]["post"]["operationId"] == "scale"
    assert set(document["paths"]["/v1/scale"]["post"]["responses"]) == {"200", "400", "403", "404", "409", "default"}
    (subject,) = document["paths"]["/v1/explain"]["get"]["parameters"][:1]
    assert subject["name"] in {"subject", "schema_version"}


def test_fields_are_described() -> None:
    """By the docstrings of their models."""
    document = openapi.document()
    row = document["components"]["schemas"]["OfferRow"]
    assert row["properties"]["price_age_s"]["description"] == "how old the price is; None when that is not known."
    assert "Attributes" not in row["description"]
    (limit,) = [one for one in document["paths"]["/v1/offers"]["get"]["parameters"] if one["name"] == "fold"]
    assert limit["description"].startswith("one row for all zones")


@pytest.mark.parametrize("model", [one for one in map(schema.__dict__.get, schema.__all__) if isinstance(one, type)])
def test_docstrings_name_fields_that_are_there(model: type[BaseModel]) -> None:
    section = (model.__doc__ or "").partition("Attributes:\n")[2]
    named = {name for names in re.findall(r"^ {8}(\w[\w, ]*): ", section, re.M) for name in names.split(", ")}
    assert named <= set(model.model_fields)


def test_meshctl_reads_the_table_without_loading_a_server() -> None:
    code = "import sys, meshd.api.endpoints; sys.exit(bool({'aiohttp', 'structlog'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_endpoint_without_a_handler_is_a_fault() -> None:
    with pytest.raises(ValueError, match="scale"):
        Handlers().check()


def test_the_page_lists_every_endpoint() -> None:
    """With MESHD_UPDATE_GOLDEN=1 the table on the page is written anew."""
    text = PAGE.read_text()
    found = re.search(r"(?<=<!-- endpoints -->\n).*?(?=<!-- end -->)", text, re.S)
    assert found
    if os.environ.get("MESHD_UPDATE_GOLDEN"):
        PAGE.write_text(text[: found.start()] + _table() + text[found.end() :])
        return
    assert found[0] == _table()


def _table() -> str:
    rows = ["| endpoint | who | request | answer | what it does |", "|---|---|---|---|---|", *map(_row, ENDPOINTS)]
    return "\n".join(rows) + "\n"


def _row(one: Endpoint[Any, Any]) -> str:
    write = isinstance(one, Write | ReadByMembers)
    who = "writers; all with `dry_run`" if write and one.has_dry_run else "writers" if write else "all"
    text = one.summary
    if one.refusals:
        text += f" May be {' or '.join(f'`{fault.kind}`' for fault in one.refusals)}."
    if one.formerly:
        text += f" Formerly {', '.join(f'`{path}`' for path in one.formerly)}, which still works."
    if one.deprecated:
        text = f"Deprecated. {text}"
    request = f"`{one.request.__name__}`" if one.request else ""
    return f"| `{one.method} {one.path}` | {who} | {request} | `{one.answer.__name__}` | {text} |"
