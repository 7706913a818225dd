"""Every advantage estimator, policy loss and preset: a real update on the CPU against implementations by others.

    python -m benchmarks.algorithms                          # the table, some minutes
    python -m benchmarks.algorithms --only gspo --only preset
    python -m benchmarks.algorithms --no-peers               # without other libraries, a minute or two
    python -m benchmarks.algorithms --attention stock        # verl's own engine instead of the token tree

The update is the trainer's own: verl's engine, loss, and optimizer on a model of two layers. Every row is compared with
the paper's formula, written in this package with transformers and PyTorch alone: it reads nothing of verl or of the
project except the samples, and a preset's numbers are taken from the paper a second time. If TRL has the same loss, or
torchrl the same estimation, a second line compares with that library's code, which runs in an environment of its own
that is made on demand. Each line says what it was compared with. Advantages, the loss, and the gradient that reaches
the optimizer are compared; ``-`` marks what the other side does not give. If any of them is off by more than 1e-4 (of
the largest), the program ends with 1.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common.peers import trl_python

TOLERANCE = 1e-4


def main() -> None:
    options = _options()
    from benchmarks.algorithms.cases import cases

    chosen = [case for case in cases() if not options.only or {case.name, case.kind} & set(options.only)]
    if not chosen:
        sys.exit(f"nothing is called {', '.join(options.only)}; without --only the table lists what there is")
    from transformers.utils.logging import disable_progress_bar

    from lightning_trainer.models.resolve import model_cache, resolve_model
    from lightning_trainer.training.update.learner import Learner  # noqa: F401  # before anything else imports verl

    # isort: split
    from benchmarks.algorithms.peers import PeerProcess
    from benchmarks.algorithms.update import HORIZON, Comparison, compare, write_models

    disable_progress_bar()
    found: list[Comparison] = []
    model = resolve_model("random:tiny", model_cache())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        policy, reference = write_models(model, folder)
        peers = None
        if (python := _peers(options.peers)) is not None:
            folders = {"policy": policy, "reference": reference, "tokenizer": model}
            peers = stack.enter_context(PeerProcess(python, folders, folder, HORIZON))
        print(f"{'':20} {'':28} {'loss':>10} {'off':>8} {'gradient':>9} {'off':>8} {'adv. off':>8} {'tokens':>6}")
        for case in chosen:
            rows = compare(case, policy, reference, options.attention, peers)
            print("\n".join(_line(row) for row in rows), flush=True)
            found += rows
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in found], indent=1))
    off = [f"{row.kind} {row.name} ({row.compared_with})" for row in found if not row.largest <= TOLERANCE]
    by_others = sum("formula" not in row.compared_with.split(",")[0] for row in found)
    print(
        f"\n{len(found)} comparisons of {len(chosen)} updates, {by_others} of them with other libraries; "
        f"{len(off)} off by more than {TOLERANCE:g}"
    )
    sys.exit(f"off: {', '.join(off)}" if off else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a row's name, or a kind of rows; again for more")
    parser.add_argument("--attention", choices=("tree", "stock"), default="tree")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="formulas alone, no other library")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    return parser.parse_args()


def _line(row) -> str:
    return (
        f"{row.kind:20} {row.name:28} {row.loss:10.5f} {_number(row.loss_difference)} {row.gradient:9.4f} "
        f"{_number(row.gradient_difference)} {_number(row.advantage_difference)} {row.tokens_trained:6}  "
        f"{row.compared_with}"
    )


def _number(difference: float | None) -> str:
    return f"{'-':>8}" if difference is None else f"{difference:8.1e}"


def _peers(wanted: bool) -> Path | None:
    if not wanted:
        return None
    python, reason = trl_python()
    if python is None:
        print(f"without other libraries: {reason}", file=sys.stderr)
    return python


if __name__ == "__main__":
    main()
