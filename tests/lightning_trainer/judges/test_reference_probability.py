"""``reference_probability``: the formula by hand, where the reference stands, and what cannot be scored."""

import json
import math
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_token_ids
from pydantic import TypeAdapter, ValidationError
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from lightning_trainer.config import Config
from lightning_trainer.config.judges import JudgeConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.judging import Judging
from lightning_trainer.judges.kinds.reference_probability import mean_probability, reference_reward
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.scoring_engine import ScoringEngine

PROMPT = [900, 901]
"""Ids that no text of these tests has."""


def nats(*probabilities):
    return [math.log(one) for one in probabilities]


def test_the_formula_by_hand():
    # After the reasoning (0.9 + 0.5 + 0.4) / 3 = 0.6, without it (0.3 + 0.2 + 0.1) / 3 = 0.2.
    assert mean_probability(nats(0.9, 0.5, 0.4)) == pytest.approx(0.6)
    assert reference_reward(nats(0.9, 0.5, 0.4), nats(0.3, 0.2, 0.1)) == pytest.approx(0.4)


def test_reasoning_that_makes_the_reference_less_probable_earns_nothing():
    assert reference_reward(nats(0.1), nats(0.9)) == 0.0


def test_one_rare_token_does_not_decide():
    """The mean of probabilities: a product, or a mean of logs, would be next to nothing."""
    assert mean_probability(nats(1.0, 1.0, 1e-9)) == pytest.approx(2 / 3)


@pytest.fixture
def model(tmp_path):
    """A folder with a tokenizer: bytes, and the word of three bytes " no"."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate((*alphabet, "Ġn", "Ġno"))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[("Ġ", "n"), ("Ġn", "o")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def encode(model):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


class Engine:
    """Answers as the engine's route does: token ``i`` of a sequence has probability ``1 / (1 + i)``, unless told."""

    def __init__(self):
        self.version = 3
        self.longest = 1000
        self.asked = []
        self.answer = None

    async def post(self, body):
        asked = json.loads(body)
        self.asked.append(asked)
        if self.answer is not None:
            return self.answer
        rows = [[-math.log(1 + place) for place in range(1, len(ids))] for ids in asked["token_ids"]]
        return 200, json.dumps({"policy": asked["policy"], "version": self.version, "logprobs": rows}).encode()


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def judge(model, engine, attempt_to_judge, encode):
    """``judge(answers, reference=, **settings)``: what attempts earn, by id, with what it asked the engine."""

    async def run(answers, reference="no", ids=None, field="reference", **settings):
        told = {"name": "known", "kind": "reference_probability", "reference": field, **settings}
        config = TypeAdapter(JudgeConfig).validate_python(told)
        spans = []
        for name, answer in answers.items():
            root, *calls = attempt_to_judge(name, [answer])
            exact = {
                semconv.PROMPT_TOKEN_IDS: pack_token_ids(PROMPT),
                semconv.response_token_ids(0): pack_token_ids(ids or [*encode(answer), *encode("<|im_end|>")]),
            }
            given = {} if reference is None else {semconv.ROLLOUT_INPUT: json.dumps({"reference": reference})}
            spans.append(replace(root, attributes={**root.attributes, **given}))
            spans += [replace(call, attributes={**call.attributes, **exact}) for call in calls]

        class Sink:
            async def append(self, spans):
                return len(spans)

        async def nothing(_):
            return []

        scoring = ScoringEngine("math", str(model), engine.post, engine.longest)
        judging = Judging(make_judge(config, lambda _: scoring), Sink(), nothing)
        judged = await judging.judge_group(spans, list(read_spans(spans).attempts), Budget())
        return {one.attempt_id: one for one in judged}

    return run


async def test_the_sampled_ids_stand_before_the_reference_and_the_lead_in_alone_without_them(judge, engine, encode):
    judged = await judge({"a": "So. The answer is yes."})
    (asked,) = engine.asked
    reasoning, reference = encode("So. The answer is"), encode(" no")
    assert len(reference) == 1
    assert asked == {
        "policy": "math",
        "token_ids": [[*PROMPT, *reasoning, *reference], [*PROMPT, *encode("The answer is"), *reference]],
    }
    # The reference is token 2 + 17 of the one and 2 + 13 of the other, each of probability 1 / (1 + place).
    assert judged["a"].value == 0.0
    assert judged["a"].reason == (
        "the reference's 1 tokens have probability 0.0500 after the reasoning, 0.0625 without it; scored by math@v3, "
        "sampled by v0"
    )


@pytest.mark.parametrize(
    ("answer", "settings", "before"),
    [
        ("It is cold.", {}, "It is cold.\nThe answer is"),  # it never says so: the lead-in is said for it
        ("The answer is a. No, the answer is b.", {}, "The answer is a. No, the answer is"),  # the last one counts
        ("<answer>b</answer>", {"lead_in": "<answer>", "separator": ""}, "<answer>"),
        ("ANSWER:\n\nb", {"lead_in": "Answer:", "answer_after": "ANSWER:\\s*"}, "ANSWER:"),  # white space is no part
        ("Ça é: b", {"lead_in": "So:", "answer_after": "é"}, "Ça é"),  # a character of two tokens
    ],
)
async def test_where_the_reference_stands(judge, engine, encode, answer, settings, before):
    await judge({"a": answer}, **settings)
    ids = engine.asked[0]["token_ids"][0]
    reference = encode(settings.get("separator", " ") + "no")
    assert ids == [*PROMPT, *encode(before), *reference]


async def test_a_border_within_a_token_is_spelled_anew(judge, engine, encode):
    """ " no" is one token, and the pattern ends in its middle."""
    await judge({"a": "I know"}, answer_after="kn", ids=[*encode("I k"), *encode(" no"), *encode("w")])
    # Decoded: "I k now"; nothing matches "kn", so the lead-in follows all of it.
    assert engine.asked[0]["token_ids"][0][2:] == [
        *encode("I k"),
        *encode(" no"),
        *encode("w"),
        *encode("\nThe answer is"),
        *encode(" no"),
    ]
    await judge({"a": "I k now"}, answer_after="k n")
    assert engine.asked[1]["token_ids"][0][2:] == [*encode("I k"), *encode(" n"), *encode(" no")]


async def test_what_is_the_same_is_scored_once(judge, engine):
    judged = await judge({"a": "One. The answer is b.", "b": "Two. The answer is c."})
    assert len(engine.asked[0]["token_ids"]) == 3  # of the lead-in alone there is one
    assert set(judged) == {"a", "b"}


async def test_what_cannot_be_scored_is_missing_and_the_others_are_not(judge, engine):
    judged = await judge({"a": "The answer is b."}, reference=None)
    assert judged["a"].value is None
    assert "the input of attempt a has no text 'reference'; give the reference answer with lt.rollout" in (
        judged["a"].reason
    )
    assert engine.asked == []
    assert (await judge({"a": "It is."}, reference=4711))["a"].value is not None
    inside = {"reference": {"truth": 4711}, "field": "reference.truth"}
    assert (await judge({"a": "It is."}, **inside))["a"].value is not None


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((422, b'{"error": {"message": "sequence 0 has 4097 tokens"}}'), "(HTTP 422): sequence 0 has 4097 tokens"),
        ((502, b"<html>"), "is not JSON"),
        ((200, b"{}"), "another form than expected"),
    ],
)
async def test_an_engine_that_refuses_leaves_the_reward_missing(judge, engine, answer, sentence):
    engine.answer = answer
    judged = await judge({"a": "It is."})
    assert judged["a"].value is None
    assert sentence in judged["a"].reason


JUDGE = {"name": "known", "kind": "reference_probability"}
POLICY = {"agents": ["a"], "model": "random:tiny"}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"judge": [JUDGE]}, "judge 'known' asks a policy's own engine (policy = ...): there is no policy"),
        (
            {"judge": [JUDGE], "policy": [{**POLICY, "name": "x"}, {**POLICY, "name": "y"}]},
            "name one of the policies x, y",
        ),
        ({"judge": [{**JUDGE, "policy": "z"}], "policy": [{**POLICY, "name": "x"}]}, "'z' is not one of them"),
        ({"judge": [{**JUDGE, "answer_after": "("}]}, "'(' is not a regular expression"),
        ({"judge": [{**JUDGE, "lead_in": "It is "}]}, "ends in white space; leave it out, and say it as separator"),
    ],
)
def test_a_mistake_is_one_sentence(document, sentence):
    with pytest.raises(ValidationError) as refused:
        Config.model_validate(document)
    assert sentence in str(refused.value)


async def test_an_answer_that_leaves_no_room_for_the_reference_costs_no_other_its_reward(judge, engine):
    """As one that runs on until the context is full: 2 + 48 tokens, the lead-in of 14 and the reference of 1."""
    engine.longest = 60
    judged = await judge({"a": "So. The answer is yes.", "b": "So so so so so so so so so so so so so so so so."})
    assert judged["a"].value is not None
    assert judged["b"].value is None
    assert "are 65 tokens, and the engine scores 60; raise engine.max_model_len" in judged["b"].reason
    ((asked,),) = ([one["token_ids"] for one in engine.asked],)
    assert max(map(len, asked)) <= 60
