"""How a canary decides: simulated deployments of versions that are worse, as good, and better than the live one.

    python -m benchmarks.canary                       # 500 of each, some minutes
    python -m benchmarks.canary --deployments 50      # quicker
    python -m benchmarks.canary --real                # once with real engines: the calculator agent, some 15 minutes

One deployment is 20,000 live rollouts that succeed or fail, a tenth of which the candidate answers;
``versions/sequential.py``, which the daemon uses, decides. The program ends with 1 if one of these claims fails: a
version that is 10 points worse is refused after it answered at most 5 % of the traffic in 95 % of the deployments, one
that is as good is refused in at most 5 %, one that is 5 points better is promoted in 90 %.
"""

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median

from benchmarks.canary import real
from benchmarks.canary.deployments import Deployment, deploy
from lightning_trainer.config.policies.versions import CanaryConfig
from lightning_trainer.versions.sequential import Decision

TRAFFIC = 20_000
LIVE = 0.6


def main() -> None:
    options = _options()
    if options.real:
        sys.exit(0 if real.run() else "a canary was not decided as it should be")
    canary = CanaryConfig()
    rows = {"10 points worse": LIVE - 0.1, "as good": LIVE, "5 points better": LIVE + 0.05}
    failed = False
    print(f"{'candidate':16} {'promoted':>9} {'refused':>8} {'stopped':>8} {'its rollouts':>13} {'share at 95 %':>14}")
    for name, rate in rows.items():
        run = partial(
            deploy,
            LIVE,
            rate,
            traffic=TRAFFIC,
            share=canary.share,
            error=1 - canary.confidence,
            tolerance=canary.tolerance,
            most=canary.max_rollouts,
        )
        with ProcessPoolExecutor(options.processes) as pool:
            found = list(pool.map(partial(_seeded, run), range(options.deployments), chunksize=5))
        states = Counter(one.decision for one in found)
        shares = sorted(one.candidate / TRAFFIC for one in found)
        late = shares[min(len(shares) - 1, int(0.95 * len(shares)))]
        portion = {state: states[state] / len(found) for state in Decision}
        exposed = median(one.candidate for one in found)
        print(
            f"{name:16} {portion[Decision.PROMOTED]:9.1%} {portion[Decision.REFUSED]:8.1%} "
            f"{portion[Decision.STOPPED]:8.1%} {exposed:13.0f} {late:14.2%}",
            flush=True,
        )
        failed |= not _holds(name, found, portion)
    sys.exit("a claim of this benchmark does not hold" if failed else 0)


def _seeded(run: partial, seed: int) -> Deployment:
    return run(seed=seed)


def _holds(name: str, found: list[Deployment], portion: dict[Decision, float]) -> bool:
    if name == "as good":
        return portion[Decision.REFUSED] <= 0.05
    if name == "5 points better":
        return portion[Decision.PROMOTED] >= 0.90
    soon = sum(one.decision is Decision.REFUSED and one.candidate <= 0.05 * TRAFFIC for one in found)
    return soon / len(found) >= 0.95


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deployments", type=int, default=500, help="of each kind")
    parser.add_argument("--real", action="store_true", help="once, with real engines, instead of the simulation")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
