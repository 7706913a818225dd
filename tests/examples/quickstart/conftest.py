"""A small report in which everything occurs: a missing reward, a refused version, text that wants to be markup."""

import pytest

from examples.calculator.quickstart.report import (
    ExampleRollout,
    ExampleSegment,
    ExampleToken,
    HeldOut,
    HeldOutResult,
    Machine,
    QuickstartReport,
    StepResult,
)
from lightning_trainer.report import paired_difference
from lightning_trainer.types import LedgerRow, Outcome, PolicyVersion, VersionState

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&"


@pytest.fixture
def report() -> QuickstartReport:
    before, after = [True] * 3 + [False] * 7, [True] * 9 + [False]
    families = ["old"] * 5 + [HOSTILE] * 5
    tokens = (
        ExampleToken("<|im_start|>", 1, False),
        ExampleToken(HOSTILE, 2, False),
        ExampleToken("7", 33, True, logprob=-0.25, advantage=1.5, segment=0),
        ExampleToken(" ", 34, True, logprob=-0.5, advantage=-0.3, segment=0),
        ExampleToken("\n", 35, True, logprob=-0.125, advantage=0.0, segment=1),
    )
    return QuickstartReport(
        seed=3,
        model="random:tiny",
        policy="calculator",
        started=1_790_000_000.0,
        ended=1_790_000_605.0,
        machine=Machine(cores=2, memory_bytes=24 * 2**30, cpu_model=f"cpu {HOSTILE}"),
        held_out=HeldOut(
            HeldOutResult.of(before, families), HeldOutResult.of(after, families), paired_difference(before, after)
        ),
        steps=(
            StepResult(
                1, 0.25, 8, 6, 1, 100, 200, 1900, 1, {"rollout": 9.0, "build": 0.1, "train": 5.0, "publish": 0.5}
            ),
            StepResult(2, None, 8, tokens_trained=0, seconds={"rollout": 8.0, "publish": None}),
            StepResult(
                3, 0.75, 8, 4, 2, 120, 210, 1800, 3, {"rollout": 7.0, "build": 0.2, "train": 4.0, "publish": 0.6}
            ),
        ),
        versions=(
            PolicyVersion("calculator", 0, 0, VersionState.RETIRED, 0),
            PolicyVersion("calculator", 1, 1, VersionState.LIVE, 1, "abcdef0123456789", 0.0125, 0.004, 0.51),
            PolicyVersion("calculator", 3, 3, VersionState.REFUSED, 3, "ffff", 3.5, 1.5, reason=f"too far {HOSTILE}"),
        ),
        ledger=(
            LedgerRow("calculator", "calculator", 0, Outcome.TRAINED, "", 100, 10),
            LedgerRow("calculator", "calculator", 1, Outcome.TRAINED, "", 120, 12),
            LedgerRow("calculator", "calculator", 1, Outcome.DROPPED, f"no spread {HOSTILE}", 80, 9),
        ),
        sampled_tokens=300,
        probe_tolerance=0.5,
        ready_s=70.0,
        settings={"learning rate": 3e-5, "note": HOSTILE},
        software={"verl": "0.9.1"},
        examples=(
            ExampleRollout(
                title=f"task {HOSTILE}",
                agent="calculator",
                attempt_id="a1",
                reward=1.0,
                segments=(ExampleSegment("9f/0", 4, 1.0), ExampleSegment("a0/0", 5, None)),
                tokens=tokens,
                step=1,
            ),
        ),
    )
