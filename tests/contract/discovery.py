"""Google's discovery documents as JSON schemas.

They are close to JSON Schema draft 3: references by name, 64-bit numbers as text, no required fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]
_OUTPUT_ONLY = re.compile(r"\[Output Only\]|Output only", re.I)


class Discovery:
    """A document from google-api-python-client.

    Args:
        name: the document's name, e.g. "compute.v1".
    """

    def __init__(self, name: str) -> None:
        file = resources.files("googleapiclient.discovery_cache").joinpath("documents", f"{name}.json")
        self.document: Json = json.loads(file.read_text("utf-8"))

    def method(self, verb: str, path: str) -> Json:
        """The method of a request's path.

        Raises:
            AssertionError: there is none.
        """
        base = f"/{self.document['servicePath']}"
        assert path.startswith(base), path
        for method in _methods(self.document):
            pattern = re.sub(r"\\\{[^}]+\\\}", "[^/]+", re.escape(method.get("flatPath", method["path"])))
            if method["httpMethod"] == verb and re.fullmatch(pattern, path.removeprefix(base)):
                return method
        raise AssertionError(f"the vendor has no {verb} {path}")

    def check_query(self, method: Json, query: dict[str, str]) -> None:
        """Check that each query parameter belongs to the method or to all methods."""
        known = {**self.document["parameters"], **method["parameters"]}
        for key, value in query.items():
            assert key in known and known[key]["location"] == "query", key
            Draft202012Validator(_plain(known[key], text=True)).validate(value)

    def check_request(self, method: Json, body: Any) -> None:
        """Check that the body fits the schema, without unknown keys or output-only fields."""
        assert ("request" in method) == (body is not None)
        if body is not None:
            self._check(method["request"]["$ref"], body, self._requests)

    def check_answer(self, method: Json, body: Any) -> None:
        """Check that the answer fits the schema, without unknown keys."""
        self._check(method["response"]["$ref"], body, self._answers)

    def _check(self, name: str, value: Any, schemas: Json) -> None:
        Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schemas}).validate(value)

    @cached_property
    def _requests(self) -> Json:
        return {name: _schema(raw, request=True) for name, raw in self.document["schemas"].items()}

    @cached_property
    def _answers(self) -> Json:
        return {name: _schema(raw, request=False) for name, raw in self.document["schemas"].items()}


def _methods(part: Json) -> Iterator[Json]:
    """The methods of all resources, at any depth."""
    for resource in part.get("resources", {}).values():
        yield from resource.get("methods", {}).values()
        yield from _methods(resource)


def _schema(raw: Json, *, request: bool) -> Json:
    if "$ref" in raw:
        return {"$ref": f"#/$defs/{raw['$ref']}"}
    if raw.get("type") == "array":
        return {"type": "array", "items": _schema(raw["items"], request=request)}
    if raw.get("type") == "object":
        fields = {
            key: _schema(field, request=request)
            for key, field in raw.get("properties", {}).items()
            if not (request and _output_only(field))
        }
        more = raw.get("additionalProperties")
        rest = _schema(more, request=request) if isinstance(more, dict) else False
        return {"type": "object", "properties": fields, "additionalProperties": rest}
    return _plain(raw)


def _output_only(field: Json) -> bool:
    return bool(field.get("readOnly")) or bool(_OUTPUT_ONLY.match(field.get("description", "")))


def _plain(raw: Json, *, text: bool = False) -> Json:
    """A scalar; `text`: as it stands in a query."""
    if raw.get("type") == "any":
        return {}
    found: Json = {"type": "string" if text else raw["type"]}
    if raw.get("format") in ("int64", "uint64"):
        found["pattern"] = r"^-?\d+$"
    if "enum" in raw:
        found["enum"] = raw["enum"]
    if "pattern" in raw:
        found["pattern"] = f"^(?:{raw['pattern']})$"
    return found
