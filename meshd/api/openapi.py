"""The OpenAPI 3.1 document of the API on the unix socket, made from the table of endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from meshd import __version__
from meshd.api.endpoints import ENDPOINTS, Endpoint, ReadByMembers, Write
from meshd.api.faults import ApiFault, BadRequest, Denied
from meshd.api.schema import ErrorView

PAGE = "/v1/openapi.json"
_REF = "#/components/schemas/{model}"

Models = Mapping[tuple[Any, JsonSchemaMode], dict[str, Any]]
"""What a model and the mode of its schema are written as: a reference."""


@cache
def document() -> dict[str, Any]:
    """The document, as plain data for JSON."""
    requests: set[type[BaseModel]] = {
        endpoint.request for endpoint in ENDPOINTS if endpoint.method == "POST" and endpoint.request
    }
    answers: set[type[BaseModel]] = {ErrorView, *(endpoint.answer for endpoint in ENDPOINTS)}
    used: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        *((model, "validation") for model in sorted(requests, key=_name)),
        *((model, "serialization") for model in sorted(answers, key=_name)),
    ]
    models, schemas = models_json_schema(used, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        for path in (endpoint.path, *endpoint.formerly):
            former = path != endpoint.path
            paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, models, former=former)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "meshd",
            "version": __version__,
            "description": "HTTP on a unix socket, `/run/meshd/meshd.sock` unless `cluster.socket` says otherwise. "
            "The kernel tells meshd which user asks.",
        },
        "servers": [{"url": "http://meshd", "description": "any host name will do: the socket decides"}],
        "paths": paths,
        "components": {"schemas": {name: _described(schema) for name, schema in schemas["$defs"].items()}},
    }


def _name(model: type[BaseModel]) -> str:
    return model.__name__


def _operation(endpoint: Endpoint[Any, Any], models: Models, *, former: bool) -> dict[str, Any]:
    writers = "Root, meshd's user and the group `cluster.socket_group`"
    who = writers if isinstance(endpoint, Write | ReadByMembers) else "Everybody"
    who += "; everybody with `dry_run`." if endpoint.has_dry_run and isinstance(endpoint, Write) else "."
    operation: dict[str, Any] = {
        "operationId": endpoint.name + ("-former" if former else ""),
        "summary": endpoint.summary.split(". ")[0].rstrip("."),
        "description": f"{endpoint.summary}\n\nWho may: {who}",
        "responses": _responses(endpoint, models),
    }
    if endpoint.request is not None and endpoint.method == "GET":
        operation["parameters"] = _parameters(endpoint.request)
    elif endpoint.request is not None:
        content = {"application/json": {"schema": models[endpoint.request, "validation"]}}
        operation["requestBody"] = {"required": True, "content": content}
    if former or endpoint.deprecated:
        operation["deprecated"] = True
    return operation


def _parameters(query: type[BaseModel]) -> list[dict[str, Any]]:
    """The query string: one parameter for each field. A list is written as a repeated name, as `explode` says."""
    schema = _described(query.model_json_schema(mode="validation"))
    assert "$defs" not in schema, "a query string has no nested models"
    required = schema.get("required", ())
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": field,
            "style": "form",
            "explode": True,
            "description": field.get("description", ""),
        }
        for name, field in schema["properties"].items()
    ]


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a model, with what the section `Attributes` of its docstring says of each field at that field."""
    if "properties" not in schema:
        return schema
    text, _, section = schema.get("description", "").partition("\n\nAttributes:\n")
    properties = dict(schema["properties"])
    for entry in re.split(r"\n(?=    \S)", section):
        names, _, meaning = entry.strip().partition(": ")
        for name in names.split(", "):
            if name in properties:
                properties[name] = {**properties[name], "description": " ".join(meaning.split())}
    return {**schema, "description": text, "properties": properties}


def _responses(endpoint: Endpoint[Any, Any], models: Models) -> dict[str, Any]:
    def answer(model: type[BaseModel], text: str) -> dict[str, Any]:
        return {"description": text, "content": {"application/json": {"schema": models[model, "serialization"]}}}

    faults: list[type[ApiFault]] = [BadRequest] if endpoint.request is not None else []
    faults += [Denied] if isinstance(endpoint, Write | ReadByMembers) else []
    faults += endpoint.refusals
    return {
        "200": answer(endpoint.answer, "done" if isinstance(endpoint, Write) else "the answer"),
        **{str(fault.status): answer(ErrorView, f"`{fault.kind}`: {_first_line(fault)}") for fault in faults},
        "default": answer(ErrorView, "Any other failure; `kind` says which."),
    }


def _first_line(fault: type[ApiFault]) -> str:
    return (fault.__doc__ or "").strip().splitlines()[0]
