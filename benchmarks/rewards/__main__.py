"""Rewards that are partly wrong: judges that err, and sources of feedback that collude.

    python -m benchmarks.rewards                            # by simulation, without an engine: about a minute
    python -m benchmarks.rewards --runs 20                  # quicker
    python -m benchmarks.rewards --only throughput          # what judging costs: some seconds
    python -m benchmarks.rewards --only learning            # with real engines: hours; continues where it stopped
    python -m benchmarks.rewards --only learning --quick    # one seed, 30 % noise, 6 steps: three short runs

Judges: one gives a yes or no that is wrong at the given rates. The daemon's own code estimates the rates from labels,
and its corrected reward is compared with the right one, in the mean over all attempts, where a second reward (0.5 for a
right format, which half of the attempts have) is added to it. The table shows the error of the estimated rates, and how
far the mean of the whole reward is from the right one, corrected and not.

Feedback: 300 sources each rate answers at random; one in ten colludes, and calls every answer of one wrong kind right.
A tenth of the attempts has a verified reward. The table shows how far the reward is from the right one on answers of
that kind and on the others, with every source worth the same and with the daemon's weights, and how many of the
colluding sources are named as mostly wrong, or are among the tenth that weighs least.

The program ends with 1 if one of these claims fails: a rate is within 0.03 of the right one with 200 labels of each
kind (the median over the runs of the two rates' mean error); from 10 % noise on, a corrected mean is nearer to the
right one than an uncorrected one; weights bring the rewards of what was praised wrongly nearer to the right ones, and
the others at most 0.01 further away.
"""

import argparse
import sys
from pathlib import Path
from statistics import median as middle

from benchmarks.rewards.feedback import Poisoning, poisoned
from benchmarks.rewards.judges import noisy
from benchmarks.rewards.learning import learning
from benchmarks.rewards.throughput import throughput

NOISE = (0.0, 0.1, 0.2, 0.3)


def main() -> None:
    options = _options()
    match options.only:
        case "learning":
            good = learning(options.results, quick=options.quick)
        case "throughput":
            good = judged(1000, at_once=32)
        case _:
            good = simulated(options.runs)
    sys.exit(0 if good else "a claim of this benchmark does not hold")


def judged(attempts: int, *, at_once: int) -> bool:
    found = throughput(attempts, at_once=at_once)
    print(
        f"{found.attempts} attempts judged, {at_once} at a time: {found.seconds:.1f} s, {found.cpu_ms:.2f} ms CPU each",
        flush=True,
    )
    return found.cpu_ms <= 3.0


def simulated(runs: int) -> bool:
    """Print both tables; return whether their claims hold."""
    print(f"{'judge noise':>12} {'labels':>7} {'rates off by':>13} {'mean off, plain':>16} {'mean off, corrected':>20}")
    good = True
    for rate in NOISE:
        found = [noisy(rate, labels=200, attempts=4000, seed=seed) for seed in range(runs)]
        rates, plain, fixed = (middle([one[place] for one in found]) for place in range(3))
        print(f"{rate:12.0%} {2 * 200:7} {rates:13.3f} {plain:16.3f} {fixed:20.3f}", flush=True)
        good &= rates < 0.03 and (rate == 0 or fixed < plain)
    print(
        f"\n{'colluding':>10} {'praised, plain':>15} {'weighed':>8} {'others, plain':>14} {'weighed':>8} {'named':>12}"
    )
    for share in (0.0, 0.1):
        results = [poisoned(share, seed=seed) for seed in range(max(3, runs // 10))]
        told = [middle([getattr(one, name) for one in results]) for name in Poisoning.__annotations__]
        praised, praised_weighed, others, others_weighed, named = told
        print(
            f"{share:10.0%} {praised:15.3f} {praised_weighed:8.3f} {others:14.3f} {others_weighed:8.3f} {named:12.0%}",
            flush=True,
        )
        good &= others_weighed <= others + 0.01 and (not share or praised_weighed < praised)
    return good


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("simulated", "throughput", "learning"), default="simulated")
    parser.add_argument("--runs", type=int, default=100, help="of each kind, simulated")
    parser.add_argument("--quick", action="store_true", help="of learning: shorter, fewer, and no claim")
    parser.add_argument(
        "--results", type=Path, default=Path(".benchmarks/rewards-learning.jsonl"), help="runs of learning that ended"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
