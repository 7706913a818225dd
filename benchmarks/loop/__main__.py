"""Seconds a step by stage, tokens a second, and update to first served token, beside the raw engine in the same run.

    python -m benchmarks.loop [--steps 3] [--model embedded:smollm2-135m-instruct]

First the whole loop: daemon, trainer, engine and the calculator agent, as in the quickstart. Then the engine alone:
the requests of the last step sent straight to it, and its own weight update. The difference is what the framework,
capture, gateway and store cost.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.common.daemons import policy_status, running_daemon
from lightning_trainer.config.file import load_config
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.settings import engine_settings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.training.remote import make_trainer
from lightning_trainer.training.settings import trainer_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator"
POLICY = "calculator"


def run_loop(folder: Path, steps: int) -> tuple[list[dict], list[dict], list[float]]:
    """Run the quickstart's loop; return the daemon's steps, the agent's steps and first-token times, by step."""
    with running_daemon(folder, POLICY) as url:
        sys.path.insert(0, str(EXAMPLE))
        from agent import solve  # pyright: ignore[reportMissingImports]
        from tasks import score, train_tasks  # pyright: ignore[reportMissingImports]

        from lightning_trainer.rollouts import Runner, StepEnded

        events: list[dict] = []
        first_token_s: list[float] = []

        def on_event(event: Any) -> None:
            if isinstance(event, StepEnded):
                events.append({"rollout_s": event.rollout_s, "wait_s": event.wait_s})
                first_token_s.append(time_first_token(url))

        def attempt(task: Any) -> float:
            return score(solve(task.question, temperature=1.0), task)

        runner = Runner(POLICY, attempt, on_event=on_event)
        runner.train(lambda step: train_tasks(step, 10), steps=steps)
        status = policy_status(url, POLICY)
        publish = {version["version"]: version["publish_s"] for version in status["versions"]}
        return [{**step, "publish_s": publish.get(step["step"])} for step in status["steps"]], events, first_token_s


def time_first_token(url: str) -> float:
    body = {"model": POLICY, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()
    return time.perf_counter() - began


async def raw_engine(folder: Path) -> tuple[float, int, float, float]:
    """Send the last step's requests straight to an engine; then update its weights.

    Returns:
        Seconds for the requests, tokens they sampled, seconds of the engine's update, seconds from there to a token.
    """
    config = load_config(folder / "lightning.toml")
    policy = config.only_policy
    model_dir = resolve_model(policy.model, model_cache())
    async with SqliteStore(folder / "state" / "lightning.sqlite") as store:
        last = (await store.steps(policy.name))[-1]
        spans = await store.spans_of_attempts(last.attempt_ids)
    from lightning_trainer.ingest.reading import read_spans

    chains: dict[str, list[tuple[list[int], int]]] = {}
    for call in read_spans(spans).calls:
        chains.setdefault(call.attempt_id or "", []).append((list(call.prompt_ids), len(call.response_ids)))
    with WeightFiles(folder) as weights:
        engine = EngineProcess(engine_settings(config, (policy,), model_dir, weights.folder, folder / "raw"))
        await engine.start()
        try:
            await engine.ready(600)
            async with httpx.AsyncClient(base_url=engine.base_url, headers=engine.headers, timeout=600) as client:
                await complete(client, policy.name, next(iter(chains.values()))[0])
                began = time.perf_counter()
                await asyncio.gather(*(in_turn(client, policy.name, calls) for calls in chains.values()))
                seconds = time.perf_counter() - began
                trainer = make_trainer("inprocess", trainer_settings(config, policy, model_dir, folder / "raw"))
                await trainer.start()
                publication = await trainer.publish(weights.path(1), 1)
                report = await engine.publish(publication)
                began = time.perf_counter()
                await complete(client, policy.name, ([1, 2, 3], 1))
                first_token_s = time.perf_counter() - began
                await trainer.close()
        finally:
            await engine.stop()
    sampled = sum(length for calls in chains.values() for _, length in calls)
    return seconds, sampled, report.seconds["update"], first_token_s


async def in_turn(client: httpx.AsyncClient, model: str, calls: list[tuple[list[int], int]]) -> None:
    for call in calls:
        await complete(client, model, call)


async def complete(client: httpx.AsyncClient, model: str, call: tuple[list[int], int]) -> None:
    prompt, length = call
    body = {"model": model, "prompt": prompt, "max_tokens": length, "ignore_eos": True, "temperature": 1.0}
    (await client.post("/v1/completions", json=body)).raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--model", default="embedded:smollm2-135m-instruct")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        text = (
            (EXAMPLE / "lightning.toml")
            .read_text()
            .replace('state_dir = ".lightning"', 'state_dir = "state"\nport = 0\ntoken = "none"')
        )
        (folder / "lightning.toml").write_text(text.replace("embedded:smollm2-135m-instruct", options.model))
        steps, events, first_tokens = run_loop(folder, options.steps)
        raw_s, raw_tokens, raw_update_s, raw_first_s = asyncio.run(raw_engine(folder))
        sampled = sampled_tokens(folder)
    show(steps, events, first_tokens, sampled, raw_s, raw_tokens, raw_update_s, raw_first_s)


def sampled_tokens(folder: Path) -> int:
    database = sqlite3.connect(folder / "state" / "lightning.sqlite")
    return database.execute("SELECT coalesce(sum(tokens), 0) FROM ledger").fetchone()[0]


def show(
    steps: list[dict],
    events: list[dict],
    first_tokens: list[float],
    sampled: int,
    raw_s: float,
    raw_tokens: int,
    raw_update_s: float,
    raw_first_s: float,
) -> None:
    console = Console()
    table = Table("step", "rollout", "build", "train", "publish", "trained", "computed", "unshared")
    for step, event in zip(steps, events, strict=True):
        seconds = step["seconds"]
        table.add_row(
            str(step["step"]),
            f"{event['rollout_s']:.2f} s",
            *(f"{seconds[name]:.2f} s" if name in seconds else "-" for name in ("build", "train")),
            "-" if step["publish_s"] is None else f"{step['publish_s']:.2f} s",
            *(f"{step[name]:,}" for name in ("tokens_trained", "tokens_computed", "tokens_sequential")),
        )
    console.print(table)
    rollout_s = sum(event["rollout_s"] for event in events)
    published = [step["publish_s"] for step in steps if step["publish_s"] is not None]
    beside = Table("", "loop", "raw engine", "ratio")
    loop_rate, raw_rate = sampled / rollout_s, raw_tokens / raw_s
    beside.add_row("sampled tokens a second", f"{loop_rate:.0f}", f"{raw_rate:.0f}", f"{loop_rate / raw_rate:.2f}")
    if published:
        loop_update = statistics.median(published) + statistics.median(first_tokens)
        raw_update = raw_update_s + raw_first_s
        beside.add_row(
            "update to first served token",
            f"{loop_update:.2f} s",
            f"{raw_update:.2f} s",
            f"{loop_update / raw_update:.2f}",
        )
    console.print(beside)


if __name__ == "__main__":
    main()
