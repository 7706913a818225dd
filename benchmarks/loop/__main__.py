"""Where each second of a step goes, compared with the least that this machine could take, measured in the same run.

    python -m benchmarks.loop [--steps 3] [--model embedded:smollm2-135m-instruct] [--profile FOLDER] [--json FILE]

First the whole loop runs: daemon, trainer, engine, and the calculator agent, as in the quickstart. Then engine and
trainer run alone: the last step's requests are sent straight to an engine, then once more under a profiler, the last
batch is trained again under a profiler, and the engine updates its weights by itself. The difference between the two is
what framework, capture, gateway, and store cost. The limits (``limits``) come from the machine's own products and
memory, with nothing else running.

Args:
    --profile: keeps the traces there; open them in ui.perfetto.dev.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common.rows import Row, as_json, at_most, print_table
from benchmarks.loop.engine_alone import EngineAlone, alone
from benchmarks.loop.limits import Machine, Shapes
from benchmarks.loop.update_alone import UpdateAlone
from benchmarks.loop.whole_loop import LoopStep, run_loop, sampled_tokens, write_configuration
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_config
from lightning_trainer.models.resolve import model_cache, resolve_model

_MOST = {"rollouts": 2.0, "training": 1.8, "publishing": 1.5}
"""At most so many times the limit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="two or more; the first warms up and is left out")
    parser.add_argument("--model", default="embedded:smollm2-135m-instruct")
    parser.add_argument("--profile", type=Path, help="keep the traces in this folder")
    parser.add_argument("--json", type=Path, help="write figures, goals and verdicts to this file")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps {options.steps}: the first step warms up, so there must be two or more")
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as name:
        folder = Path(name)
        traces = (options.profile or folder / "traces").resolve()
        traces.mkdir(parents=True, exist_ok=True)
        write_configuration(folder, options.model)
        config = load_config(folder / "lightning.toml")
        steps = run_loop(folder, options.steps)
        sampled = sampled_tokens(folder)
        engine, update = asyncio.run(alone(folder, config, traces))
    machine = _machine(config)
    show_steps(steps)
    rows = _rows(steps, sampled / len(steps), engine, update, machine, config)
    print_table("\nStages beside their limits", rows)
    rollout_cpu_s = _mean_by_process([step.rollout_cpu_s for step in steps[1:]])
    update_cpu_s = _mean_by_process([step.update_cpu_s for step in steps[1:]])
    show_parts("CPU-seconds of a step's rollouts, by process", rollout_cpu_s)
    show_parts(
        f"CPU-seconds from there to the next, by process; the last update alone took {update.cpu_s:.1f}", update_cpu_s
    )
    show_parts("The engine alone, seconds", engine.parts)
    show_parts("The update alone, seconds", update.parts)
    if options.profile:
        print(f"traces: {traces} (open them in ui.perfetto.dev)")
    if options.json:
        parts = {
            "rollout CPU": rollout_cpu_s,
            "update CPU": update_cpu_s,
            "engine": dict(engine.parts),
            "update": dict(update.parts),
        }
        options.json.write_text(json.dumps({"rows": as_json(rows), "parts": parts}, indent=1) + "\n")


def _machine(config: Config) -> Machine:
    import torch
    from transformers import AutoConfig

    shapes = Shapes.of(AutoConfig.from_pretrained(resolve_model(config.only_policy.model, model_cache())))
    return Machine(shapes, getattr(torch, config.engine.dtype))


def _rows(
    steps: Sequence[LoopStep],
    sampled: float,
    engine: EngineAlone,
    update: UpdateAlone,
    machine: Machine,
    config: Config,
) -> list[Row]:
    """Return the rows of the table.

    Args:
        sampled: tokens a step.
    """
    warm = steps[1:]
    rollout_s = statistics.median(step.rollout_s for step in warm)
    train_s = statistics.median(step.seconds["train"] for step in warm)
    rows_at_a_time = config.engine.max_num_seqs
    rollout_limit_s = machine.rollout_s(engine.read, engine.sampled, rows_at_a_time) * sampled / engine.sampled
    # The prediction at a node is computed once, however many samples go through the node.
    asked = statistics.median(step.tokens_trained for step in warm)
    train_limit_s = machine.update_s(int(statistics.median(step.tokens_computed for step in warm)), int(asked))
    probed = sum(map(len, update.publication.probe.token_ids))
    publish_limit_s = machine.publication_s(probed)
    published = [step.publish_s for step in warm if step.publish_s is not None]
    loop_rate, raw_rate = sampled / rollout_s, engine.sampled / engine.seconds
    found = [
        Row("loop", "large products", machine.gflops, "GFLOP/s", note=f"{config.engine.dtype}, the model's shapes"),
        Row("loop", "memory, read and written", machine.bytes_per_s / 1e9, "GB/s"),
        *_stage("rollouts", rollout_s, rollout_limit_s, f"{sampled:.0f} tokens sampled, {loop_rate:.0f} a second"),
        Row("loop", "tokens a second beside the engine alone", loop_rate / raw_rate, "", note=f"{raw_rate:.0f} alone"),
        *_stage("training", train_s, train_limit_s, f"{asked:.0f} tokens trained"),
    ]
    if published:
        publish_s = statistics.median(published)
        found += _stage("publishing", publish_s, publish_limit_s, f"export and probe alone {update.export_s:.2f} s")
        served_s = publish_s + statistics.median(step.first_token_s for step in warm)
        raw_s = engine.update_s + engine.first_token_s
        note = f"{served_s:.2f} s beside {raw_s:.2f} s"
        found.append(
            Row("loop", "update to first served token beside the engine's own", served_s / raw_s, "", note=note)
        )
    return found


def _stage(name: str, seconds: float, limit_s: float, note: str) -> list[Row]:
    beside = f"{seconds:.2f} s beside {limit_s:.2f} s; {note}"
    return [at_most("loop", f"{name}, times the limit", seconds / limit_s, _MOST[name], "", beside, "median")]


def _mean_by_process(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    kinds = {kind for step in steps for kind in step}
    means = {kind: statistics.mean(step.get(kind, 0.0) for step in steps) for kind in kinds}
    return dict(sorted(means.items(), key=lambda mean: -mean[1]))


def show_steps(steps: Sequence[LoopStep]) -> None:
    table = Table("step", "rollout", "build", "train", "publish", "trained", "computed", "unshared")
    for step in steps:
        table.add_row(
            str(step.step),
            f"{step.rollout_s:.2f} s",
            *(f"{step.seconds[name]:.2f} s" if name in step.seconds else "-" for name in ("build", "train")),
            "-" if step.publish_s is None else f"{step.publish_s:.2f} s",
            *(f"{count:,}" for count in (step.tokens_trained, step.tokens_computed, step.tokens_sequential)),
        )
    Console().print(table)


def show_parts(title: str, parts: Mapping[str, float]) -> None:
    table = Table("", "seconds", "share", title=f"\n{title}", title_justify="left")
    whole = sum(parts.values())
    for part, seconds in parts.items():
        table.add_row(part, f"{seconds:.2f}", f"{seconds / whole:.0%}")
    Console().print(table)


if __name__ == "__main__":
    main()
