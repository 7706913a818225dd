"""Tasks from recorded calls: a chain of calls, a question that reveals no result, and a value of the last result.

Difficulty is the number of calls. A chain is executed again before it is kept: an answer that differs the second time
cannot be checked. Only a digest of the chain decides whether it is held out; the digest is also in the task's name.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_trainer.environments.mcp_server import McpResult
from lightning_trainer.environments.protocol import Tool, is_held_out
from lightning_trainer.environments.scenarios.exploring import Called, Found, Path, Scalar, Server, at, leaves


@dataclass(frozen=True)
class Link:
    """A call of a chain; each argument is a value, or a path into the result of the previous call."""

    tool: str
    arguments: tuple[tuple[str, Scalar], ...]
    taken: tuple[tuple[str, Path], ...]


@dataclass(frozen=True)
class Chain:
    """A chain of calls and the place of the answer."""

    links: tuple[Link, ...]
    path: Path
    """The answer's path in the last result."""

    @property
    def content(self) -> str:
        """Return the chain as JSON: its digest names the task, and decides whether it is held out."""
        return json.dumps([[link.tool, link.arguments, link.taken] for link in self.links] + [self.path])

    def executed(self, server: Server) -> list[tuple[dict[str, Any], McpResult]]:
        """Make the calls, and return each one's arguments and result; empty if one fails or a path no longer exists."""
        made: list[tuple[dict[str, Any], McpResult]] = []
        value: Any = None
        for link in self.links:
            try:
                arguments = {**dict(link.arguments), **{name: at(value, path) for name, path in link.taken}}
            except (KeyError, IndexError, TypeError):
                return []
            result = server.call(link.tool, arguments)
            if result.failed:
                return []
            made.append((arguments, result))
            value = result.value
        return made

    def answer(self, made: Sequence[tuple[dict[str, Any], McpResult]]) -> Any:
        """Return the answer in the last call's result; None if there is none."""
        try:
            return at(made[-1][1].value, self.path)
        except (KeyError, IndexError, TypeError):
            return None


@dataclass(frozen=True)
class Scenario:
    """A task made from a chain."""

    chain: Chain
    question: str
    answer: Scalar

    @property
    def held_out(self) -> bool:
        """Whether the task is kept for evaluation: a hash of its chain decides."""
        return is_held_out(self.chain.content)

    def as_task(self, command: Sequence[str]) -> dict[str, Any]:
        """Return the task's line in a file of tasks."""
        digest = hashlib.sha256(self.chain.content.encode()).hexdigest()[:12]
        calls = [
            {"tool": link.tool, "arguments": dict(link.arguments), "taken": {n: list(p) for n, p in link.taken}}
            for link in self.chain.links
        ]
        return {
            "id": f"chain-{len(calls)}-{digest}",
            "question": self.question,
            "answer": self.answer,
            "difficulty": len(calls),
            "calls": calls,
            "command": list(command),
        }


def make_scenarios(
    found: Found,
    fresh: Server,
    *,
    difficulties: Sequence[int],
    count: int,
    held_out: int,
    seed: int = 0,
) -> tuple[list[Scenario], list[Scenario]]:
    """Return at most the given numbers of training and held-out scenarios, cycling through the difficulties.

    Args:
        fresh: another process of the same server, in which every chain is executed again.
    """
    chance = random.Random(seed)
    tools = {tool.tool.name: tool.tool for tool in fresh.tools}
    by_difficulty = {
        difficulty: list(_shuffled(_chains(found.calls, difficulty), chance)) for difficulty in difficulties
    }
    train: list[Scenario] = []
    held: list[Scenario] = []
    asked: set[str] = set()
    while any(by_difficulty.values()) and (len(train) < count or len(held) < held_out):
        for chains in by_difficulty.values():
            scenario = _next(chains, tools, fresh, asked, len(train) < count, len(held) < held_out)
            if scenario is not None:
                asked.add(scenario.question)
                (held if scenario.held_out else train).append(scenario)
    return train, held


def _next(
    chains: list[tuple[Chain, Scalar]],
    tools: dict[str, Tool],
    fresh: Server,
    asked: set[str],
    wants_training: bool,
    wants_held_out: bool,
) -> Scenario | None:
    while chains:
        chain, answer = chains.pop()
        scenario = Scenario(chain, worded(chain, tools), answer)
        if not (wants_held_out if scenario.held_out else wants_training):
            continue
        # An answer that was an argument of a call, or a question that is asked already, teaches nothing.
        if scenario.question in asked:
            continue
        made = chain.executed(fresh)
        if chain.answer(made) == answer and str(answer) not in _arguments(made):
            return scenario
    return None


def _chains(calls: Iterable[Called], difficulty: int) -> Iterator[tuple[Chain, Scalar]]:
    for called in calls:
        if called.depth != difficulty or (links := _links(called)) is None:
            continue
        for path, value in leaves(called.result):
            yield Chain(links, path), value


def _links(called: Called) -> tuple[Link, ...] | None:
    """Return the calls in order; None if they are not a single chain, because a question could not express them."""
    taken = tuple((name, source.path) for name, source in called.sources)
    of_others = {name for name, _ in taken}
    link = Link(called.tool, tuple(pair for pair in called.arguments if pair[0] not in of_others), taken)
    before = {source.call for _, source in called.sources}
    if not before:
        return (link,)
    if len(before) > 1:
        return None
    earlier = _links(before.pop())
    return None if earlier is None else (*earlier, link)


def worded(chain: Chain, tools: dict[str, Tool]) -> str:
    """Return the question: the purpose of each tool, its arguments, and which value is passed on."""
    sentences = []
    for number, link in enumerate(chain.links):
        given = [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in link.arguments]
        given += [f"{name} from there ({way(path)})" for name, path in link.taken]
        first = (tools[link.tool].description.strip().splitlines() or [link.tool.replace("_", " ")])[0].rstrip(".")
        words = first[:1].lower() + first[1:]
        lead = "First" if number == 0 and len(chain.links) > 1 else "Then" if number else "Do this"
        sentences.append(f"{lead}: {words}{' with ' + ' and '.join(given) if given else ''}.")
    return f"{' '.join(sentences)} What is {way(chain.path)}?"


def way(path: Path) -> str:
    """Return a path in words, the innermost part first."""
    words = [f"entry {part + 1}" if isinstance(part, int) else part.replace("_", " ") for part in path]
    return "the " + " of ".join(reversed(words)) if words else "the result"


def _arguments(made: Iterable[tuple[dict[str, Any], McpResult]]) -> set[str]:
    return {str(value) for arguments, _ in made for value in arguments.values()}


def _shuffled(items: Iterable[Any], chance: random.Random) -> list[Any]:
    # Sorted by content first, because the order of discovery depends on the server.
    ordered = sorted(items, key=lambda pair: pair[0].content)
    chance.shuffle(ordered)
    return ordered
