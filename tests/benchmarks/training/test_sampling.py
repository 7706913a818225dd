"""Ways of sampling are compared with the plain one, and a way that does not reach the engine is no comparison."""

import pytest
from langchain.agents.middleware import ModelRequest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage, ToolMessage

from benchmarks.training import sampling


def _step(mismatch=1e-6, restricted=1.0, clipped=0.0):
    return {
        "reward/mean": 0.5,
        "tokens/trained": 1000,
        "mismatch/abs_mean": mismatch,
        "sampling/restricted": restricted,
        "sampling/no_choice": 0.2,
        "actor/pg_clipfrac": clipped,
    }


@pytest.fixture
def steps():
    return {name: [_step(restricted=float(name != "plain"))] * 3 for name in sampling.WAYS}


def _missed(steps):
    return [row.what for row in sampling.rows_of(steps) if row.met is False]


def test_ways_that_are_trained_as_they_are_sampled_meet_their_goals(steps):
    assert _missed(steps) == []
    whats = [row.what for row in sampling.rows_of(steps)]
    assert len(set(whats)) == len(whats) == 2 + 4 * 5


@pytest.mark.parametrize(
    ("step", "row"),
    [
        (_step(mismatch=0.1), "mismatch/abs_mean"),
        (_step(restricted=0.0), "tokens it restricts"),
        (_step(clipped=0.1), "clipped tokens"),
    ],
)
def test_a_way_that_is_not_misses_one(steps, step, row):
    steps["top_k 5"] = [_step(), _step(), step]
    if "restricts" in row:
        steps["top_k 5"] = [step] * 3
    assert _missed(steps) == [f"top_k 5: {row}"]


def test_where_no_token_had_a_choice_nothing_was_compared(steps):
    forced = {name: value for name, value in _step().items() if "/trained" not in name and "mismatch" not in name}
    steps["top_p 0.3"] = [forced] * 3
    assert _missed(steps) == []
    (row,) = (row for row in sampling.rows_of(steps) if row.what == "top_p 0.3: mismatch/abs_mean")
    assert (row.figure, row.met) == (None, None)


ASKED = {
    "top_p 0.3": {"top_p": 0.3, "temperature": 2.0},
    "top_k 5": {"extra_body": {"top_k": 5}},
    "logit_bias": {"logit_bias": {"1232": 2, "731": 2, "1672": 2}},
}


@pytest.mark.parametrize("name", sampling.WAYS)
def test_each_way_changes_the_request_in_its_way_alone(name):
    model = FakeListChatModel(responses=["4"])
    for message in (HumanMessage("2 + 2?"), ToolMessage("4", tool_call_id="1")):
        request = ModelRequest(model=model, messages=[message], model_settings={"max_tokens": 9})
        asked = sampling.WAYS[name](request)
        first = isinstance(message, HumanMessage)
        settings = dict(asked.model_settings)
        assert settings.pop("max_tokens") == 9
        assert asked.tool_choice == ("calculator" if name == "forced tool" and first else None)
        if name == "json_schema" and not first:
            assert settings["extra_body"]["response_format"]["type"] == "json_schema"
        else:
            assert settings == ASKED.get(name, {})


@pytest.mark.process
def test_the_bias_names_the_operators_of_the_model():
    from tokenizers import Tokenizer

    from lightning_trainer.models.resolve import model_cache, resolve_model

    folder = resolve_model("embedded:smollm2-135m-instruct", model_cache())
    spelled = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for operator, token in sampling._OPERATORS.items():
        assert spelled.encode(operator).ids == [token]
