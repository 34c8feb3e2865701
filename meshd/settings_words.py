"""PURE: turns pydantic's errors in settings into faults for people: the present value, and the allowed ones."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from meshd.codes import FaultCode
from meshd.errors import Fault
from meshd.secret_signs import names_secret, sign_of

_SHOWN_MAX = 60
_NEARLY_AS_NEAR = 0.12
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_FORMS = (
    ("^[a-z]([-a-z0-9]{0,18}", "it must be lower-case letters, digits and dashes, at most 20, a letter first"),
    ("^https?://", 'it must be a URL, e.g. "https://api.example.com"'),
    ("^(https?://", 'it must be a URL, e.g. "https://api.example.com"'),
    ("^(|[A-Za-z0-9.-]+:", 'it must be HOST:PORT, e.g. "127.0.0.1:9679"'),
    ("^[A-Z]{2}$", 'it must be two capital letters, e.g. "US"'),
    (r"^\d{1,5}/", 'it must be a port and its protocol, e.g. "22/tcp"'),
    (r"^(\d+\.\d+)", 'it must be a version in quotes, e.g. "12.8"'),
    ("^/", "it must be an absolute path"),
)
_WANTED = (
    ("bool", "true or false, without quotes"),
    ("int", "a whole number, e.g. 8"),
    ("float", "a number, e.g. 2.5"),
    ("path", 'a path in quotes, e.g. "/etc/meshd/key"'),
    ("string", "text in quotes"),
    ("tuple", 'a list in brackets, e.g. ["one", "two"]'),
    ("list", 'a list in brackets, e.g. ["one", "two"]'),
    ("dict", "a table, e.g. { name = 1 }"),
    ("mapping", "a table, e.g. { name = 1 }"),
    ("model", "a table"),
)


def fault_of(error: Mapping[str, Any], model: type[BaseModel], prefix: Sequence[str] = ()) -> Fault:
    """Turn one error of pydantic into a fault.

    Args:
        error: from `ValidationError.errors()`, with its input and context.
        model: the validated model.
        prefix: the path of the model's table; `error["loc"]` starts below it.
    """
    loc = tuple(error["loc"])
    key = (*prefix, *(str(part) for part in loc))
    name, value = dotted(key), error.get("input")
    if error["type"] == "extra_forbidden":
        if cure := _former(model, loc):
            return Fault(f"{name}: no longer a setting", cure, key, code=FaultCode.UNKNOWN_KEY)
        return Fault(f"{name}: unknown key", _instead(model, loc), key, code=FaultCode.UNKNOWN_KEY)
    shown = f"{name} = {show(value, key)}" if loc and not isinstance(value, Mapping) else name
    code = FaultCode.KEY_MISSING if error["type"] == "missing" else FaultCode.BAD_VALUE
    return Fault(f"{shown}: {demand(error)}".removeprefix(": "), _meaning(model, loc, error["type"]), key, code=code)


def dotted(key: Iterable[str]) -> str:
    """A key's path as TOML writes it; places in lists in brackets: `pools.h100.features[0]`."""
    text = ""
    for part in key:
        plain = part if re.fullmatch(r"[\w-]+", part) else json.dumps(part)
        text += f"[{part}]" if part.isdigit() and text else f".{plain}" if text else plain
    return text


def show(value: object, key: Sequence[str] = ()) -> str:
    """A value in TOML form, shortened; "..." for a value that is, or may be, a secret."""
    if isinstance(value, SecretStr) or sign_of(str(value)) or any(names_secret(part) for part in key):
        return "..."
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def near(word: str, known: Iterable[str]) -> str:
    """A question with known names close to a mistyped one: `did you mean h100 or h200?`; "" without any."""
    found = get_close_matches(word.lower(), sorted({name.lower() for name in known}), n=3, cutoff=0.6)
    likeness = {name: SequenceMatcher(None, word.lower(), name).ratio() for name in found}
    found = [name for name in found if likeness[name] > likeness[found[0]] - _NEARLY_AS_NEAR]
    return f"did you mean {' or '.join(found)}?" if found else ""


def misplaced_truth(table: object, model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterable[Fault]:
    """Faults for `true` and `false` in place of a number, which pydantic would accept as 1 and 0.

    Args:
        table: parsed TOML.
        model: the model that will validate it.
        path: of the table.
    """
    if not isinstance(table, Mapping):
        return
    for key, value in table.items():
        field = model.model_fields.get(key)
        if field is None:
            continue
        inner = _plain(field.annotation)
        here = (*path, str(key))
        if isinstance(value, bool) and inner & {int, float} and bool not in inner:
            yield Fault(
                f"{dotted(here)} = {show(value)}: it must be a number, e.g. 2", "", here, code=FaultCode.BAD_VALUE
            )
        for kind in inner:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from misplaced_truth(value, kind, here)
        if (of := _values_of(field.annotation)) and isinstance(value, Mapping):
            for name, one in value.items():
                yield from misplaced_truth(one, of, (*here, str(name)))


def demand(error: Mapping[str, Any]) -> str:
    """The allowed values, as text."""
    kind, context = error["type"], error.get("ctx") or {}
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"it must be {words} {context[bound]:g}"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        return f"it must be one of {', '.join(allowed)}"
    if kind in {"value_error", "assertion_error"}:
        return str(error["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        return next((words for start, words in _FORMS if context["pattern"].startswith(start)), "it has another form")
    if kind in {"too_short", "string_too_short"}:
        return "it is empty" if context.get("min_length") == 1 else f"it needs at least {context['min_length']}"
    if kind in {"too_long", "string_too_long"}:
        return f"it may have at most {context['max_length']}"
    if kind == "finite_number":
        return "it must be a number, and neither inf nor nan"
    if kind == "int_from_float":
        return "it must be a whole number"
    if kind == "missing":
        return "it is missing"
    wanted = next((words for start, words in _WANTED if kind.startswith(start)), "")
    return f"it must be {wanted}" if wanted else str(error["msg"])


def _meaning(model: type[BaseModel], loc: Sequence[object], kind: str) -> str:
    """For a pattern mismatch: the setting's description; "" otherwise."""
    if kind != "string_pattern_mismatch":
        return ""
    field = _field(model, loc)
    return f"what it is: {field.description}" if field is not None and field.description else ""


def _former(model: type[BaseModel], loc: Sequence[object]) -> str:
    """For a key that an earlier version had: what to do, from the model's own FORMER; "" for any other key."""
    former = getattr(_table(model, loc[:-1]), "FORMER", {})
    return str(former.get(str(loc[-1]), ""))


def _instead(model: type[BaseModel], loc: Sequence[object]) -> str:
    """For an unknown key: keys with similar names, or the table that has a key of this name."""
    table = _table(model, loc[:-1])
    name = str(loc[-1])
    if table is None:
        return ""
    if hint := near(name, table.model_fields):
        return hint
    homes = [
        other
        for other, field in model.model_fields.items()
        for kind in _plain(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and name in kind.model_fields
    ]
    homes += [f"{other}.NAME" for other, field in model.model_fields.items()
              if (of := _values_of(field.annotation)) and name in of.model_fields]  # fmt: skip
    if homes:
        return f"it belongs into [{homes[0]}]"
    known = ", ".join(table.model_fields)
    return f"there are: {known}" if len(known) < 200 else "see `man meshd.toml`"


def _table(model: type[BaseModel], loc: Sequence[object]) -> type[BaseModel] | None:
    """The model of a table within the model."""
    here: type[BaseModel] | None = model
    for part in loc:
        if here is None:
            return None
        field = here.model_fields.get(str(part))
        if field is None:
            return _values_at(model, loc)
        kinds = [k for k in _plain(field.annotation) if isinstance(k, type) and issubclass(k, BaseModel)]
        here = kinds[0] if kinds else _values_at(model, loc)
    return here


def _values_at(model: type[BaseModel], loc: Sequence[object]) -> type[BaseModel] | None:
    """For `pools.NAME`: the model of each value."""
    field = model.model_fields.get(str(loc[0])) if loc else None
    return _values_of(field.annotation) if field is not None and len(loc) == 2 else None


def _field(model: type[BaseModel], loc: Sequence[object]) -> Any:
    for end in range(len(loc), 0, -1):
        table = _table(model, loc[: end - 1])
        if table is not None and str(loc[end - 1]) in table.model_fields:
            return table.model_fields[str(loc[end - 1])]
    return None


def _plain(annotation: Any) -> set[Any]:
    """The plain types that an annotation allows."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain(get_args(annotation)[0])
    if origin in {Union, types.UnionType}:
        return {kind for one in get_args(annotation) for kind in _plain(one)}
    if origin is Literal:
        return {type(one) for one in get_args(annotation)}
    return {origin or annotation}


def _values_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a dict's values, for tables with names that the user chooses, such as pools."""
    arguments = get_args(annotation)
    of = arguments[1] if get_origin(annotation) is dict and len(arguments) == 2 else None
    return of if isinstance(of, type) and issubclass(of, BaseModel) else None
