"""``lightning-trainer scenarios mcp``: from a server's list of tools to files of tasks, and of demonstrations."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.dataset.atomic import replacing
from lightning_trainer.environments.mcp_server import McpServer
from lightning_trainer.environments.scenarios import demonstrations, explore, make_scenarios
from lightning_trainer.errors import ConfigError, LightningError

_LONGEST_CHAIN = 6


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """The arguments of ``lightning-trainer scenarios mcp``."""

    command: tuple[str, ...]
    out: Path
    count: int
    held_out: int
    demonstrations: int
    difficulty: str
    seed: int
    budget: int
    tools: tuple[str, ...]
    timeout_s: float


def make_mcp_scenarios(options: ScenarioOptions) -> None:
    """Write ``train.jsonl``, ``held-out.jsonl`` and, if any are asked for, ``demonstrations.jsonl``.

    Raises:
        ConfigError: the difficulty cannot be read, or the server lacks a tool that was named.
        LightningError: the server cannot be used, its answers give no task, or a file cannot be written.
    """
    difficulties = _difficulties(options.difficulty)
    console = TerminalConsole()
    with console.status("asking the server ..."), McpServer(options.command, timeout_s=options.timeout_s) as server:
        names = [tool.tool.name for tool in server.tools]
        unknown = [name for name in options.tools if name not in names]
        if unknown:
            raise ConfigError(f"the server has no tool {unknown[0]!r}; it has {', '.join(names)}")
        found = explore(server, seed=options.seed, budget=options.budget, depth=difficulties[-1], allowed=options.tools)
    if not found.calls:
        skipped = f"; left alone: {', '.join(found.skipped)} (name them with --tool)" if found.skipped else ""
        raise LightningError(
            f"no tool of the server could be called: {len(names)} tools, {found.refused} calls refused{skipped}"
        )
    with (
        console.status("executing the chains again ..."),
        McpServer(options.command, timeout_s=options.timeout_s) as fresh,
    ):
        train, held_out = make_scenarios(
            found, fresh, difficulties=difficulties, count=options.count, held_out=options.held_out, seed=options.seed
        )
        shown = demonstrations(train, fresh, options.demonstrations)
    if not train:
        raise LightningError(
            f"{len(found.calls)} calls gave no chain of difficulty {options.difficulty} with an answer that can be "
            "checked; try a lower one, or more --budget"
        )
    for name, scenarios in (("train", train), ("held-out", held_out)):
        _write(options.out / f"{name}.jsonl", (scenario.as_task(options.command) for scenario in scenarios))
    if options.demonstrations:
        _write(options.out / "demonstrations.jsonl", shown)
    by_difficulty = Counter(len(scenario.chain.links) for scenario in train)
    calls_of_tasks = ", ".join(f"{number} of {calls}" for calls, number in sorted(by_difficulty.items()))
    rows = f"{len(shown)} rows of demonstrations; " if options.demonstrations else ""
    said = (
        f"{len(train)} training tasks (calls: {calls_of_tasks}) and {len(held_out)} held-out tasks in {options.out}; "
        f"{rows}{len(found.calls)} calls were made, {found.refused} refused"
    )
    console.print(said, markup=False, highlight=False)
    if found.skipped:
        words = f"left alone, since they may change something: {', '.join(found.skipped)} (--tool NAME calls one)"
        console.print(words, markup=False, highlight=False)


def _difficulties(text: str) -> list[int]:
    match = re.fullmatch(r"(\d)(?:-(\d))?", text.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= _LONGEST_CHAIN:
        raise ConfigError(
            f"the difficulty is {text!r}; write a number of calls up to {_LONGEST_CHAIN}, or two as in 1-3"
        )
    return list(range(low, high + 1))


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as aside, aside.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
