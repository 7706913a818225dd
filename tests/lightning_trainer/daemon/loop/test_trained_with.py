"""What is recorded of the settings tells whether a step that is repeated is the same step."""

import math
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.loop.trained_with import changed_since, require_same_stage, trained_with
from lightning_trainer.errors import SettingsChangedError
from lightning_trainer.store.records import StepRecord, StepState
from lightning_trainer.types import StepReport


def policy(**settings: Any) -> PolicyConfig:
    return PolicyConfig(**{"name": "p", "agents": ("a",), "model": "random:tiny", **settings})


def recorded(step: int, then: PolicyConfig | None) -> StepRecord:
    settings = {} if then is None else trained_with(then, step)
    return StepRecord(step, StepState.TRAINED, (), StepReport(step, {}, {}, 1, 1, 1, {}, settings))


@pytest.mark.parametrize(
    ("then", "now", "name"),
    [
        ({"optimizer": {"lr": 1e-4}}, {}, "optimizer.lr = 0.0001, and now it is 1e-05"),
        ({}, {"algorithm": "cispo"}, "algorithm."),
        ({"lora": {}}, {}, "lora.rank = 16, and now it is 0"),
        ({"algorithm": {"clip_ratio_c": math.inf}}, {}, "algorithm.clip_ratio_c = inf, and now it is 3.0"),
        ({"credit": {"scheme": "gigpo"}}, {}, "algorithm.advantage = credit, and now it is grpo"),
    ],
)
def test_what_an_update_depends_on_is_named(then: dict, now: dict, name: str):
    sentence = changed_since(policy(**now), [recorded(1, policy(**now)), recorded(2, policy(**then))])
    assert sentence is not None
    assert sentence.startswith(f"step 2 was trained with {name}")


def test_what_is_in_the_recorded_batch_or_was_never_recorded_counts_for_nothing():
    now = policy(algorithm={"dynamic_sampling": True, "keep_most_uncertain": None}, group_size=4, checkpoint_every=3)
    assert changed_since(now, [recorded(1, policy()), recorded(2, None)]) is None


def test_models_are_known_by_their_weights_wherever_their_folder_is(tmp_path: Path):
    def of(place: str, weights: str) -> PolicyConfig:
        folder = tmp_path / place
        folder.mkdir()
        (folder / "model.safetensors").write_text(weights)
        return policy(model=str(folder), algorithm={"kl_loss_coef": 0.1, "reference_model": str(folder)})

    then = recorded(7, of("home", "a"))
    assert changed_since(of("srv", "a"), [then]) is None
    sentence = changed_since(of("other", "b"), [then])
    assert sentence is not None
    assert sentence.startswith("step 7 was trained with weights of reference_model = ")


def test_the_place_that_was_recorded_in_earlier_releases_counts_for_nothing():
    earlier = {"model": "/home/a/p/models/qwen", "algorithm.reference_model": "/home/a/p/models/larger"}
    report = StepReport(1, {}, {}, 1, 1, 1, {}, earlier)
    assert changed_since(policy(), [StepRecord(1, StepState.TRAINED, (), report)]) is None


def test_a_step_has_the_settings_of_its_stage():
    stages = policy(stage=[{"steps": 2, "lr": 1e-3}, {"lr": 1e-4}])
    assert [trained_with(stages, step)["optimizer.lr"] for step in (1, 2, 3)] == ["0.001", "0.001", "0.0001"]
    shorter = policy(stage=[{"steps": 1, "lr": 1e-3}, {"lr": 1e-4}])
    sentence = changed_since(shorter, [recorded(step, stages) for step in (1, 2, 3)])
    assert sentence == "step 2 was trained with optimizer.lr = 0.001, and now it is 0.0001"


def test_a_step_counts_from_the_beginning_of_its_stage_as_far_as_that_was_recorded():
    stages, one = policy(stage=[{"steps": 2}, {}]), policy()
    assert changed_since(one, [recorded(2, stages)]) is None
    assert changed_since(one, [recorded(3, stages)]) == "step 3 was trained with stage.first_step = 3, and now it is 1"
    earlier = {name: value for name, value in trained_with(stages, 3).items() if name != "stage.first_step"}
    record = StepRecord(3, StepState.TRAINED, (), StepReport(3, {}, {}, 1, 1, 1, {}, earlier))
    assert changed_since(one, [record]) is None
    require_same_stage(one, record)


SHOWN: dict[str, Any] = {"steps": 5, "algorithm": "sft", "data": "shown.jsonl"}


@pytest.mark.parametrize("now", [[], [{}]])
def test_a_stage_that_is_over_cannot_be_left_out_where_it_was_the_first(now: list):
    for step in (3, 5):
        with pytest.raises(SettingsChangedError, match=f"step {step} was trained with algorithm.objective = sft, and"):
            require_same_stage(policy(stage=now), recorded(step, policy(stage=[SHOWN])))


def test_a_stage_may_be_added_behind_it_or_be_given_other_steps_and_settings():
    for now in ([SHOWN, {}], [SHOWN | {"steps": 9, "lr": 1e-3}], [{"steps": 5, "algorithm": "sft"}]):
        require_same_stage(policy(stage=now), recorded(5, policy(stage=[SHOWN])))
    require_same_stage(policy(stage=[{"steps": 5}, {}], algorithm="cispo"), recorded(5, policy()))
