"""The messages about refused settings: one sentence for each, with its place, its value, and what to write."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Place = tuple[str | int, ...]
KeyPath = tuple[str, ...]
"""A place without the numbers of list elements."""
Sections = Mapping[KeyPath, tuple[str, set[str]]]
"""Heading and keys of each section; a section that has several kinds has the keys of all of them."""

_SECRET = frozenset({"token", "token_env", "api_key_env", "base_url", "url"})
"""Settings whose values no message repeats: the token is a secret, and users may have put one into the others."""
_NOT_A_TABLE = frozenset({"model_type", "model_attributes_type", "dict_type", "mapping_type"})
_MANY_KEYS = 16
"""A section with this many keys or more does not have them listed in a sentence."""
_MANY_HOMES = 4
"""A key that this many sections have does not tell in which one it was meant to be."""


def sentences(error: ValidationError, document: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return what is wrong with ``document``, which ``model`` refused, without quoting a secret."""
    details: dict[Place, list[ErrorDetails]] = {}
    names: dict[Place, str] = {}
    for detail in error.errors():
        place, name = _in_document(detail["loc"], document, missing=detail["type"] == "missing")
        details.setdefault(place, []).append(detail)
        names[place] = name
    # A mistake within a section also invalidates the section and its other possible forms: report only the cause.
    spoilt = {other[:length] for other in details for length in range(len(other))}
    causes = [place for place in details if place not in spoilt]
    sections = _sections(model)
    return "; ".join(_sentence(place, names[place], details[place], sections) for place in causes)


def _in_document(location: Place, document: Any, *, missing: bool) -> tuple[Place, str]:
    """Return the part of pydantic's location that exists in the file, and its dotted name, which names list elements.

    Pydantic's location also holds the kind of a value that may have several kinds.
    """
    place: list[str | int] = []
    names: list[str] = []
    node = document
    for number, part in enumerate(location, start=1):
        name = str(part)
        if _has(node, part):
            node = node[part]
            if isinstance(part, int) and isinstance(node, dict) and isinstance(node.get("name"), str):
                name = node["name"] or name
        elif not missing or number < len(location):
            continue
        place.append(part)
        names.append(_printable(name))
    return tuple(place), ".".join(names)


def _has(node: Any, part: str | int) -> bool:
    return part in node if isinstance(node, dict) else isinstance(node, list) and isinstance(part, int)


def _printable(name: str) -> str:
    return name if name.isprintable() else repr(name)


def _sentence(place: Place, name: str, details: Sequence[ErrorDetails], sections: Sections) -> str:
    path = tuple(part for part in place if isinstance(part, str))
    kind, context = details[0]["type"], details[0].get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key {name!r}; {_advice(path, sections)}"
    if kind == "missing":
        return f"{name} is missing"
    if kind.startswith("union_tag_"):  # the key that gives a section's kind
        key = context["discriminator"].strip("'")
        if "tag" not in context:
            return f"{name}.{key} is missing"
        return f"{name}.{key} = {context['tag']!r}: there are {context['expected_tags']}"
    # If the value is a secret or a whole section, only its place is named.
    value = details[0]["input"]
    plain = isinstance(value, str | int | float | bool) and _SECRET.isdisjoint(place)
    said = ", or ".join(dict.fromkeys(_message(detail, path, sections, plain=plain) for detail in details))
    said = said.replace(", or it has to be ", " or ")
    return f"{name or 'configuration'}{f' = {value!r}' if plain else ''}: {said}"


def _message(detail: ErrorDetails, path: KeyPath, sections: Sections, *, plain: bool) -> str:
    value = detail["input"]
    heading = sections[path][0] if path in sections else f"[{'.'.join(map(_printable, path))}]"
    if detail["type"] == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    if detail["type"] in _NOT_A_TABLE:
        return f"write a table, {heading} or {{key = value}}"
    if detail["type"] == "tuple_type":
        if isinstance(value, dict) and path in sections:
            return f"there can be several, so write {heading}, with two brackets"
        like = json.dumps(value) if plain and isinstance(value, str) else "..."
        return f"write a list, like [{like}]"
    said = detail["msg"].split(", unable to")[0].replace("Input should be", "it has to be")
    return said.replace("be a valid integer", "be an integer").replace("be a valid ", "be a ")


def _advice(path: KeyPath, sections: Sections) -> str:
    """Return what to write instead of the key at the end of ``path``, which its section does not have."""
    *section, key = path
    while tuple(section) not in sections:  # below names that the user chose
        section.pop()
    _, keys = sections[tuple(section)]
    if key in keys:
        return "only another kind has it"
    homes: dict[str, str] = {}
    for home, (heading, known) in sections.items():
        if key in known:  # a stage of a policy repeats the policy's own sections, which come first
            homes.setdefault(home[-1] if home else "", heading or f"a section of its own, [{key}]")
    if 0 < len(homes) < _MANY_HOMES:
        return f"it belongs in {' or '.join(homes.values())}"
    if close := get_close_matches(key, keys, n=1):
        return f"did you mean {close[0]!r}?"
    return f"there are {', '.join(sorted(keys))}" if len(keys) < _MANY_KEYS else "check its spelling"


def _sections(model: type[BaseModel]) -> Sections:
    found: dict[KeyPath, tuple[str, set[str]]] = {}
    waiting: list[tuple[KeyPath, str, type[BaseModel]]] = [((), "", model)]
    for path, heading, section in waiting:  # level by level: the loop appends to the list that it runs over
        found.setdefault(path, (heading, set()))[1].update(section.model_fields)
        for name, field in section.model_fields.items():
            several = get_origin(field.annotation) is tuple
            inner_heading = f"[[{'.'.join((*path, name))}]]" if several else f"[{'.'.join((*path, name))}]"
            waiting += [((*path, name), inner_heading, inner) for inner in _models_in(field.annotation)]
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from _models_in(argument)
