"""A benchmark before and after a change, in one run: an earlier commit and this checkout, by turns.

    python -m benchmarks.compare HEAD~1 capture --quick --only cost
    python -m benchmarks.compare HEAD~1 transitions --rounds 5 --only speed

Arguments after the benchmark's name are passed on to it. Each round runs the earlier commit's benchmark on the earlier
commit's code, and then this checkout's on its own (uncommitted changes too), both with this environment's packages. The
medians over the rounds and their ratio are printed; a figure has changed if the ranges of its rounds before and now do
not overlap. Figures that only one of the two measures are named and not compared. The exit status is 0 even if figures
changed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.common.processes import ROOT
from benchmarks.compare.checkout import CannotCompare, Checkout, Figures, checkout, figures


def main() -> None:
    options, arguments = _options()
    before: list[Figures] = []
    after: list[Figures] = []
    now = Checkout(ROOT, Path(sys.executable))
    try:
        with checkout(ROOT, options.commit) as earlier:
            for number in range(options.rounds):
                print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
                before.append(figures(earlier, options.benchmark, arguments))
                after.append(figures(now, options.benchmark, arguments))
    except CannotCompare as reason:
        sys.exit(str(reason))
    console = Console()
    console.width = max(console.width, 150)
    console.print(compared(f"{options.benchmark}: {options.commit} and now, rounds: {options.rounds}", before, after))
    for which, ones, others in (("before", before, after), ("now", after, before)):
        if alone := sorted({what for _, what, _ in set(ones[0]) - set(others[0])}):
            console.print(f"only {which}: {escape('; '.join(alone))}")


def compared(title: str, before: Sequence[Figures], after: Sequence[Figures]) -> Table:
    """Return a row for each figure that every round of both has: medians, ratio, ranges, and whether it changed."""
    table = Table("what", "before", "now", "now / before", "unit", "changed", title=title, title_justify="left")
    for column in table.columns[1:4]:
        column.justify = "right"
    for key in before[0]:
        if all(key in one for one in [*before, *after]):
            _, what, unit = key
            old, new = [one[key] for one in before], [one[key] for one in after]
            ratio = f"{median(new) / median(old):.2f}" if median(old) else "-"
            table.add_row(escape(what), _range(old), _range(new), ratio, unit, _changed(old, new))
    return table


def _range(numbers: Sequence[float]) -> str:
    low, middle, high = min(numbers), median(numbers), max(numbers)
    return f"{middle:.4g}" if low == high else f"{middle:.4g} ({low:.4g} to {high:.4g})"


def _changed(old: Sequence[float], new: Sequence[float]) -> str:
    if len(old) == 1:
        return "?" if old != new else ""  # one round of each does not tell a change from noise
    if min(new) > max(old):
        return "higher"
    return "lower" if max(new) < min(old) else ""


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what git takes for one")
    parser.add_argument("benchmark", help="capture, transitions, training ...; one that prints figures with --json")
    parser.add_argument("--rounds", type=int, default=3, help="of each; three or more tell a change from noise")
    options, arguments = parser.parse_known_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    return options, arguments


if __name__ == "__main__":
    main()
