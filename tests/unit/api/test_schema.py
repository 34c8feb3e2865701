"""The published schema only grows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema

from meshd.api.schema import DOCUMENTS, SCHEMA_VERSION, StatusView

GOLDEN = Path(__file__).parent / "schema_v1.json"


def _bare(value: Any) -> Any:
    """Without words for people."""
    if isinstance(value, dict):
        return {k: _bare(v) for k, v in value.items() if k not in ("description", "title")}
    return [_bare(v) for v in value] if isinstance(value, list) else value


def _now() -> dict[str, Any]:
    return {kind.__name__: kind.model_json_schema(mode="validation") for kind in DOCUMENTS}


def _objects(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = dict(schema.get("$defs", {}))
    found[""] = schema
    return found


def test_only_additive_changes() -> None:
    now = json.loads(json.dumps({name: _bare_keep_names(schema) for name, schema in _now().items()}))
    if os.environ.get("MESHD_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    golden = json.loads(GOLDEN.read_text())
    for name, old in golden.items():
        assert name in now, f"{name} went away"
        for part, old_part in _objects(old).items():
            new_part = _objects(now[name])[part]
            for field, kind in old_part.get("properties", {}).items():
                assert new_part["properties"].get(field) == kind, f"{name} {part}.{field} changed"
            added = set(new_part.get("required", [])) - set(old_part.get("required", []))
            assert not added, f"{name} {part}: {added} became required: older programs do not send it"


def _bare_keep_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Property names may be `title`; only annotations go."""
    bare = {k: v for k, v in schema.items() if k not in ("description", "title")}
    if "properties" in bare:
        bare["properties"] = {name: _bare(kind) for name, kind in bare["properties"].items()}
    if "$defs" in bare:
        bare["$defs"] = {name: _bare_keep_names(part) for name, part in bare["$defs"].items()}
    return bare


def test_documents_satisfy_their_schema() -> None:
    view = StatusView.model_validate({"cluster": "lab", "version": "1", "at": "2026-01-02T03:04:05Z"})
    jsonschema.validate(json.loads(view.model_dump_json()), StatusView.model_json_schema())
    assert view.schema_version == SCHEMA_VERSION == 1
