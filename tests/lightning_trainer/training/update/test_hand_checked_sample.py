"""A two-call tool rollout, worked out by hand from what the engine saw to what the loss reads, token by token.

The policy is asked (10 11), calls the tool (20 21), is told the result (30 31 32) and answers (40). Its twin in the
group answers at once (50 51). The first attempt was right (reward 1), the second wrong (reward 0).
"""

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.types import Attempt, AttemptState, Call, Evaluation, Fidelity

pytestmark = pytest.mark.verl

_WORDS = {
    10: "what is",
    11: "6*7?",
    20: "calc(",
    21: "6*7)",
    30: "[tool]",
    31: "42",
    32: "[you]",
    40: "42",
    50: "4",
    51: "8",
}


def _call(span: str, attempt: str, prompt, response, logprobs, start: int) -> Call:
    return Call(
        call_id=f"{span}/0",
        trace_id="t",
        span_id=span,
        parent_span_id=None,
        response_id=f"response-{span}",
        agent="solver",
        rollout_id=f"rollout-{attempt}",
        attempt_id=attempt,
        policy="math",
        policy_version=3,
        prompt_ids=prompt,
        response_ids=response,
        behavior_logprobs=logprobs,
        finish_reason="stop",
        complete=True,
        start_ns=start,
        end_ns=start + 1,
        fidelity=Fidelity.EXACT,
    )


@pytest.fixture
def batch():
    calls = [
        _call("first", "right", (10, 11), (20, 21), (-0.5, -0.25), 1),
        _call("second", "right", (10, 11, 20, 21, 30, 31, 32), (40,), (-1.0,), 2),
        _call("only", "wrong", (10, 11), (50, 51), (-2.0, -0.125), 1),
    ]
    attempts = [
        Attempt(name, f"rollout-{name}", "task", "group", state=AttemptState.SUCCEEDED, started_ns=0, ended_ns=9)
        for name in ("right", "wrong")
    ]
    evaluations = [
        Evaluation("reward", value, f"rollout-{name}", name, None, 8)
        for name, value in (("right", 1.0), ("wrong", 0.0))
    ]
    policy = PolicyConfig(name="math", agents=("solver",), model="random:tiny", group_size=2, groups_per_step=1)
    build = build_batch(calls, attempts, evaluations, policy, step=1)
    assert build.batch is not None
    return build.batch


def test_the_sample_is_the_whole_conversation_with_a_mask_over_what_the_policy_wrote(batch):
    right, wrong = sorted(batch.samples, key=lambda sample: -len(sample.token_ids))
    assert right.token_ids == (10, 11, 20, 21, 30, 31, 32, 40)
    assert right.loss_mask == (0, 0, 1, 1, 0, 0, 0, 1)
    assert right.behavior_logprobs == (0.0, 0.0, -0.5, -0.25, 0.0, 0.0, 0.0, -1.0)
    assert wrong.token_ids == (10, 11, 50, 51)
    assert wrong.loss_mask == (0, 0, 1, 1)
    assert wrong.behavior_logprobs == (0.0, 0.0, -2.0, -0.125)
    written = [_WORDS[token] for token, bit in zip(right.token_ids, right.loss_mask, strict=True) if bit]
    assert written == ["calc(", "6*7)", "42"]


def test_its_advantages_are_the_attempts_on_written_tokens(batch):
    from lightning_trainer.training.update.estimation.advantages import token_advantages

    right, wrong = sorted(batch.samples, key=lambda sample: -len(sample.token_ids))
    found = token_advantages(batch.samples, "grpo", AlgorithmConfig())
    # Two rows, rewards 1 and 0: mean 0.5, standard deviation sqrt(0.5), advantage +-0.5 / 0.70711 = +-0.70711
    plus = pytest.approx(0.70711, abs=1e-5)
    assert list(found[right.sample_id]) == [0.0, 0.0, plus, plus, 0.0, 0.0, 0.0, plus]
    minus = pytest.approx(-0.70711, abs=1e-5)
    assert list(found[wrong.sample_id]) == [0.0, 0.0, minus, minus]


def test_the_loss_reads_each_token_with_its_own_logprob_and_advantage(batch):
    from lightning_trainer.training.update.batch.tensors import training_tensors

    right, wrong = sorted(batch.samples, key=lambda sample: -len(sample.token_ids))
    advantages = {right.sample_id: range(8), wrong.sample_id: range(10, 14)}
    tensors = training_tensors([right, wrong], {"advantages": advantages})
    jagged = {name: value for name, value in tensors.items() if getattr(value, "is_nested", False)}
    assert {name: [row.tolist() for row in value.unbind()] for name, value in jagged.items()} == {
        "prompts": [[10, 11], [10, 11]],
        "responses": [[20, 21, 30, 31, 32, 40], [50, 51]],
        "input_ids": [[10, 11, 20, 21, 30, 31, 32, 40], [10, 11, 50, 51]],
        "position_ids": [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3]],
        "response_mask": [[1, 1, 0, 0, 0, 1], [1, 1]],
        "loss_mask": [[1, 1, 0, 0, 0, 1], [1, 1]],
        "behaviour_log_probs": [[-0.5, -0.25, 0.0, 0.0, 0.0, -1.0], [-2.0, -0.125]],
        "old_log_probs": [[-0.5, -0.25, 0.0, 0.0, 0.0, -1.0], [-2.0, -0.125]],
        "advantages": [[2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [12.0, 13.0]],
    }
