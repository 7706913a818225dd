"""``reference_probability`` by a real engine says what a plain forward pass of transformers says."""

import json
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_token_ids
from pydantic import TypeAdapter

from lightning_trainer.config.judges import JudgeConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.judging import JudgedSpans
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.scoring_engine import SCORE_PATH, ScoringEngine
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.shared_memory import file_checksum

pytestmark = pytest.mark.engine
_PROBE = [1, 50, 60, 70, 80, 90]


@pytest.fixture
def model(engine):
    """What the engine serves from now on; tests before this one may have left another version."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(engine.model_dir, dtype=torch.float32).eval()
    tensors = {name: t.contiguous().clone() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    version = engine.next_version()
    path = engine.weights.path(version)
    save_file(tensors, path)
    scores = probabilities(model, _PROBE).log().tolist()
    probe, tolerance = Probe((tuple(_PROBE),), (tuple(scores),)), Tolerance(1e-3, 1e-3)
    report = engine.publish(
        Publication("tiny", version, str(path), file_checksum(path), len(tensors), "float32", probe, tolerance)
    )
    assert report.accepted, report.reason
    return model


def probabilities(model, ids):
    """Of each id but the first, after those before it: ``[L - 1]``."""
    import torch

    with torch.no_grad():
        after = model(torch.tensor([ids])).logits[0, :-1].softmax(-1)
    return after.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def mean_probabilities(model, befores, reference):
    """What the model makes of the reference after each beginning, without anything of ours."""
    return [float(probabilities(model, [*before, *reference])[-len(reference) :].mean()) for before in befores]


async def test_it_agrees_with_a_plain_forward_pass(engine, model, tiny_model, attempt_to_judge):
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
    *known, guessed = mean_probabilities(model, befores, encode(" blue"))
    assert known[0] != known[1]
    for verdict, expected in zip(verdicts, known, strict=True):
        assert verdict.value == pytest.approx(min(1.0, max(0.0, expected - guessed)), abs=1e-5)
        assert f"probability {expected:.4f} after the reasoning, {guessed:.4f} without it" in verdict.reason
