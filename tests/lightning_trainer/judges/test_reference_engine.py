"""``reference_probability`` by a real engine says what a plain forward pass of transformers says."""

import json
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.telemetry.packing import pack_token_ids
from pydantic import TypeAdapter

from lightning_trainer.config.rewards.judges import JudgeConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.judging import JudgedSpans
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.scoring_engine import SCORE_PATH, ScoringEngine

pytestmark = pytest.mark.engine


def mean_probabilities(model_dir, befores, reference):
    """What the model makes of the reference after each beginning, without anything of ours."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    found = []
    for before in befores:
        ids = torch.tensor([[*before, *reference]])
        with torch.no_grad():
            probabilities = model(ids).logits[0].softmax(-1)
        places = range(len(before), ids.shape[1])
        found.append(sum(float(probabilities[place - 1, ids[0, place]]) for place in places) / len(reference))
    return found


async def test_it_agrees_with_a_plain_forward_pass(engine, tiny_model, attempt_to_judge):
    async with engine.client() as client:

        async def post(body):
            answer = await client.post(SCORE_PATH, content=body, headers={"content-type": "application/json"})
            return answer.status_code, answer.content

        own = ScoringEngine("tiny", str(tiny_model), post)
        encode = lambda text: own.tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731
        prompt = encode("<|im_start|>user\nWhich color has the sky?<|im_end|>\n<|im_start|>assistant\n")
        answers = {"a": "Look up. The answer is red.", "b": "I do not know."}
        spans = []
        for name, answer in answers.items():
            root, call = attempt_to_judge(name, [answer])
            given = {semconv.ROLLOUT_INPUT: json.dumps({"reference": "blue"})}
            exact = {
                semconv.POLICY: "tiny",
                semconv.PROMPT_TOKEN_IDS: pack_token_ids(prompt),
                semconv.response_token_ids(0): pack_token_ids(encode(answer + "<|im_end|>")),
            }
            spans += [
                replace(root, attributes={**root.attributes, **given}),
                replace(call, attributes={**call.attributes, **exact}),
            ]
        config = TypeAdapter(JudgeConfig).validate_python({"name": "known", "kind": "reference_probability"})
        judge = make_judge(config, lambda _: own)
        attempts = JudgedSpans(spans, read_spans(spans).attempts).attempts
        verdicts = await judge.verdicts(attempts, judge.question(attempts), Budget())
    befores = [
        prompt + encode(text) for text in ("Look up. The answer is", "I do not know.\nThe answer is", "The answer is")
    ]
    *known, guessed = mean_probabilities(tiny_model, befores, encode(" blue"))
    assert known[0] != known[1]
    for verdict, expected in zip(verdicts, known, strict=True):
        assert verdict.value == pytest.approx(min(1.0, max(0.0, expected - guessed)), abs=1e-5)
        assert f"probability {expected:.4f} after the reasoning, {guessed:.4f} without it" in verdict.reason
