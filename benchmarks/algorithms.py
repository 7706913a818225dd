"""Every advantage estimator, policy loss and preset: a real update on the CPU against plain PyTorch.

    python benchmarks/algorithms.py                          # the table, a minute or two
    python benchmarks/algorithms.py --only gspo --only preset
    python benchmarks/algorithms.py --attention stock        # verl's own engine instead of the token tree

The update is the trainer's own: verl's engine, loss and optimiser on a model of two layers. The formula that it is held
to is written in ``algorithms_parts`` from the papers, with transformers and PyTorch alone. Advantages, the loss and the
gradient that reaches the optimiser are compared. A row of which one is further off than 1e-4 (loss and gradient as a
share of what they should be) ends the program with 1.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

TOLERANCE = 1e-4


def main() -> None:
    options = _options()
    from algorithms_parts.cases import cases
    from transformers.utils.logging import disable_progress_bar

    from lightning_trainer.models.resolve import model_cache, resolve_model
    from lightning_trainer.training.update.learner import Learner  # noqa: F401  # before anything else imports verl

    chosen = [case for case in cases() if not options.only or {case.name, case.kind} & set(options.only)]
    if not chosen:
        sys.exit(f"nothing is called {', '.join(options.only)}; without --only the table lists what there is")
    from algorithms_parts.update import Comparison, compare, write_models

    disable_progress_bar()
    found: list[Comparison] = []
    print(f"{'':20} {'':28} {'loss':>10} {'off':>8} {'gradient':>9} {'off':>8} {'adv. off':>8} {'tokens':>6}")
    with tempfile.TemporaryDirectory() as folder:
        policy, reference = write_models(resolve_model("random:tiny", model_cache()), Path(folder))
        for case in chosen:
            found.append(compare(case, policy, reference, options.attention))
            print(_line(found[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in found], indent=1))
    off = [f"{row.kind} {row.name}" for row in found if not row.largest <= TOLERANCE]
    print(f"\n{len(found)} updates, {len(off)} off by more than {TOLERANCE:g}")
    sys.exit(f"off: {', '.join(off)}" if off else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a row's name, or a kind of rows; again for more")
    parser.add_argument("--attention", choices=("tree", "stock"), default="tree")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    return parser.parse_args()


def _line(row) -> str:
    return (
        f"{row.kind:20} {row.name:28} {row.loss:10.5f} {row.loss_difference:8.1e} {row.gradient:9.4f} "
        f"{row.gradient_difference:8.1e} {row.advantage_difference:8.1e} {row.tokens_trained:6}"
    )


if __name__ == "__main__":
    main()
