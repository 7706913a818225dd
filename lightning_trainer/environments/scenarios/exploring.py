"""Exploring what a server's tools return by calling them: arguments come from JSON Schemas and from earlier results.

A value that one tool returned under a name is passed to another tool that requires the same name and type, so chains
are meaningful: an ``order_id`` that was listed is looked up, an arbitrary number is not.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lightning_trainer.environments.mcp_server import McpResult, McpTool
from lightning_trainer.environments.protocol import Tool

_LONGEST_TEXT = 80
"""Maximum length of a value that may be an argument or an answer."""
_ENTRIES = 12
"""How many entries of a list are read; the rest is ignored."""
_VALUES_OF_A_NAME = 200
_CALLS_KEPT = 5000
_DRY_ROUNDS = 10
"""Arguments are drawn at random: after this many rounds without a new call, exploring ends."""

Path = tuple[str | int, ...]
Scalar = str | int | float | bool
Call = tuple[str, tuple[tuple[str, Scalar], ...]]
"""A tool and its arguments."""


class Server(Protocol):
    """The part of ``McpServer`` that exploring uses."""

    @property
    def tools(self) -> Sequence[McpTool]: ...

    def call(self, name: str, arguments: Mapping[str, Any]) -> McpResult: ...


@dataclass(frozen=True)
class Source:
    """The origin of a value: the result of a call, and the path in it."""

    call: Called
    path: Path

    @property
    def value(self) -> Scalar:
        """Return the value at the path in the call's result."""
        return at(self.call.result, self.path)


@dataclass(frozen=True)
class Called:
    """A call that was made, and the origins of its arguments."""

    tool: str
    arguments: tuple[tuple[str, Scalar], ...]
    sources: tuple[tuple[str, Source], ...]
    """Origins of the arguments that come from an earlier result."""
    result: Any = field(hash=False, compare=False)

    @property
    def depth(self) -> int:
        """Return the length of the chain that ends with this call."""
        return 1 + max((source.call.depth for _, source in self.sources), default=0)


@dataclass
class Found:
    """The result of exploring."""

    calls: list[Called] = field(default_factory=list)
    refused: int = 0
    """Number of calls that the server answered with an error or without data."""
    skipped: tuple[str, ...] = ()
    """Tools that may change something, and were not allowed by name."""


def explore(server: Server, *, seed: int = 0, budget: int = 200, depth: int = 3, allowed: Iterable[str] = ()) -> Found:
    """Call tools until the budget is spent or there is nothing new to call.

    Args:
        budget: maximum number of calls.
        depth: length of the longest chain.
        allowed: tools to call even though they do not declare themselves read-only.
    """
    chance = random.Random(seed)
    named = set(allowed)
    tools = [tool.tool for tool in server.tools if tool.reads_only or tool.tool.name in named]
    found = Found(skipped=tuple(tool.tool.name for tool in server.tools if tool.tool not in tools))
    pool: dict[str, list[Source]] = {}
    answers: dict[Call, Any] = {}
    known: set[Called] = set()
    left, dry = budget, 0
    while left > 0 and dry < _DRY_ROUNDS and len(known) < _CALLS_KEPT:
        before = len(known)
        for tool in chance.sample(tools, len(tools)):
            # A few calls of each tool in turn, so that none uses up the budget.
            for arguments, sources in _some(_arguments(tool, pool, chance, depth), 6):
                call = (tool.name, arguments)
                if call not in answers:
                    if left <= 0:
                        continue
                    left -= 1
                    answered = server.call(tool.name, dict(arguments))
                    found.refused += answered.failed or answered.value is None
                    answers[call] = None if answered.failed else answered.value
                # The same call, reached in another way, is another chain.
                called = Called(tool.name, arguments, sources, answers[call])
                if called.result is None or called in known:
                    continue
                known.add(called)
                found.calls.append(called)
                for path, _ in leaves(called.result):
                    kept = pool.setdefault(_name(tool.name, path), [])
                    if len(kept) < _VALUES_OF_A_NAME:
                        kept.append(Source(called, path))
        dry = dry + 1 if len(known) == before else 0
    return found


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Scalar]]:
    """Yield every short scalar of a result with its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:_ENTRIES]):
            yield from leaves(inner, (*path, number))
    elif isinstance(value, bool | int | float) or (isinstance(value, str) and 0 < len(value.strip()) <= _LONGEST_TEXT):
        yield path, value


def at(value: Any, path: Path) -> Any:
    """Return the value at a path."""
    for part in path:
        value = value[part]
    return value


def _arguments(
    tool: Tool, pool: Mapping[str, list[Source]], chance: random.Random, depth: int
) -> Iterator[tuple[tuple[tuple[str, Scalar], ...], tuple[tuple[str, Source], ...]]]:
    """Yield arguments that the schema allows; none if a required one has no value yet."""
    schema = tool.parameters
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if name in properties]
    for _ in range(60):
        values: dict[str, Scalar] = {}
        sources: dict[str, Source] = {}
        for name in required:
            kind = _resolved(properties[name], schema)
            known = [
                source
                for source in pool.get(_singular(name), ())
                if _fits(source.value, kind) and source.call.depth < depth
            ]
            if known:
                sources[name] = chance.choice(known)
                values[name] = sources[name].value
                continue
            own = list(_of_schema(kind, chance))
            if not own:
                return
            values[name] = chance.choice(own)
        yield tuple(sorted(values.items())), tuple(sorted(sources.items(), key=lambda pair: pair[0]))


def _of_schema(kind: Mapping[str, Any], chance: random.Random) -> Iterator[Scalar]:
    """Yield values that the schema itself names; text without any hint has none."""
    for key in ("enum", "examples"):
        yield from (value for value in kind.get(key) or () if isinstance(value, str | int | float | bool))
    for key in ("const", "default"):
        if isinstance(kind.get(key), str | int | float | bool):
            yield kind[key]
    if kind.get("enum"):
        return
    if kind.get("type") == "boolean":
        yield from (True, False)
    elif kind.get("type") in ("integer", "number"):
        yield from _within(kind, chance)


def _within(kind: Mapping[str, Any], chance: random.Random) -> Iterator[Scalar]:
    """Yield a number between the schema's bounds, a whole one if there is any."""
    low = kind.get("minimum", kind.get("exclusiveMinimum"))
    high = kind.get("maximum", kind.get("exclusiveMaximum"))
    if low is None or high is None:
        return
    first = math.ceil(low) if "minimum" in kind else math.floor(low) + 1
    last = math.floor(high) if "maximum" in kind else math.ceil(high) - 1
    if first <= last:
        yield chance.randint(first, last)
    elif kind.get("type") == "number":
        yield (low + high) / 2


def _resolved(kind: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow ``$ref``; of alternatives, take the first that is not null."""
    for _ in range(8):
        reference = kind.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            kind = (schema.get("$defs") or {}).get(reference.removeprefix("#/$defs/"), {})
        elif kind.get("anyOf"):
            kind = next((one for one in kind["anyOf"] if one.get("type") != "null"), {})
        else:
            break
    return kind


def _fits(value: Scalar, kind: Mapping[str, Any]) -> bool:
    wanted = kind.get("type")
    if kind.get("enum"):
        return value in kind["enum"]
    if isinstance(value, bool):
        return wanted == "boolean"
    if isinstance(value, int):
        return wanted in ("integer", "number")
    if isinstance(value, float):
        return wanted == "number"
    return wanted == "string"


def _name(tool: str, path: Path) -> str:
    """Return a value's name: its key, with its owner before a bare key such as ``id`` or ``name``: ``customer_id``."""
    keys = [part for part in path if isinstance(part, str)]
    last = keys[-1] if keys else tool
    if last in ("id", "name", "key", "code"):
        owner = keys[-2] if len(keys) > 1 else re.sub(r"^(list|get|find|search|show|read|query)_", "", tool)
        return f"{_singular(owner)}_{last}"
    return _singular(last)


def _singular(name: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name if name.endswith(("ss", "us", "is")) else name.removesuffix("s")


def _some(items: Iterable[Any], count: int) -> Iterator[Any]:
    for item, _ in zip(items, range(count), strict=False):
        yield item
