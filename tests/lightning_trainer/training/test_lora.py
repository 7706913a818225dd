"""An adapter is all that is trained, saved and published, and what is published is a PEFT adapter of the model."""

import math
import shutil
from dataclasses import replace

import pytest
from pydantic import ValidationError

from lightning_trainer.config.policies.updates import LoraConfig
from lightning_trainer.errors import TrainingError
from lightning_trainer.types import TrainingBatch

_LORA = LoraConfig(rank=4, alpha=8)


@pytest.fixture
def trainer(settings):
    from lightning_trainer.training.trainer import Trainer

    return lambda **changes: Trainer(settings(**{"lora": _LORA, "lr": 1e-2, **changes}))


@pytest.fixture
def batch(samples_of_shape):
    return lambda step: TrainingBatch("tiny", step, tuple(samples_of_shape(step, "masks with holes")))


def _weights(trainer):
    from lightning_trainer.training.update.exporting import whole_values

    return {name: whole_values(value).clone() for name, value in trainer.module.state_dict().items()}


def _peft_model(base, folder):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, folder).eval()


def _logprobs(model, ids):
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [logits[i, token].item() for i, token in enumerate(ids[1:])]


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"rank": 0}, "greater than or equal to 1"),
        ({"rank": 513}, "less than or equal to 512"),
        ({"target_modules": ()}, "target_modules is empty"),
        ({"target_modules": ("q_proj", "lm_head")}, "names 'lm_head', which the engine serves without an adapter"),
        ({"dropout": 0.1}, "Extra inputs are not permitted"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(changes, because):
    with pytest.raises(ValidationError, match=because):
        LoraConfig.model_validate(changes)


@pytest.mark.verl
def test_only_the_adapter_moves_and_only_it_has_optimizer_state(trainer, batch):
    trained = trainer()
    before = _weights(trained)
    trained.step(batch(1))
    trained.step(batch(2))
    moved = {name for name, value in _weights(trained).items() if not bool((value == before[name]).all())}
    assert moved == {name for name in before if ".lora_" in name}
    state = trained._learner.policy.engine.optimizer.state
    adapter = {parameter for name, parameter in trained.module.named_parameters() if ".lora_" in name}
    assert set(state) == adapter


@pytest.mark.verl
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ["tree", "stock"])
def test_the_model_below_is_there_once_as_it_is_computed_with_and_trains_as_verls_copies_do(
    attention, dtype, tied, trainer, tiny_models, batch, monkeypatch
):
    import torch
    from torch.distributed.tensor import DTensor

    from lightning_trainer.training.update.engines.frozen import FrozenModelEngine

    alike = {"attention": attention, "dtype": dtype, "model_dir": tiny_models(tied=tied)}
    ours = trainer(**alike)
    for name in ("_build_lora_module", "_build_fsdp_module"):
        monkeypatch.delattr(FrozenModelEngine, name)
    verls = trainer(**alike)
    for step in (1, 2):
        assert ours.step(batch(step)).metrics == verls.step(batch(step)).metrics
    of_verls = _weights(verls)
    assert all(bool((value == of_verls[name]).all()) for name, value in _weights(ours).items() if ".lora_" in name)

    by_name = dict(ours.module.named_parameters())
    assert all(isinstance(value, DTensor) == (".lora_" in name) for name, value in by_name.items())
    assert all(value.dtype == torch.float32 for name, value in by_name.items() if ".lora_" in name)
    linear = {value.dtype for name, value in by_name.items() if "_proj.base_layer" in name}
    assert linear == {torch.bfloat16 if dtype == "bfloat16" else torch.float32}
    if attention == "tree":  # the residual stream is not rounded
        assert {value.dtype for name, value in by_name.items() if "embed" in name or "norm" in name} == {torch.float32}


@pytest.mark.verl
def test_version_0_is_the_model_itself(trainer, tiny_models, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    publication = trainer().publish(tmp_path / "weights", 0)
    model = AutoModelForCausalLM.from_pretrained(tiny_models(), dtype=torch.float32)
    for ids, logprobs in zip(publication.probe.token_ids, publication.probe.logprobs, strict=True):
        assert logprobs == pytest.approx(_logprobs(model, ids), abs=1e-5)


@pytest.mark.verl
@pytest.mark.parametrize(("tied", "architecture"), [(True, "llama"), (False, "qwen2")])
def test_what_is_published_is_what_peft_loads_and_the_probe_was_scored_on(
    tied, architecture, tiny_models, trainer, batch, tmp_path
):
    from safetensors import safe_open
    from safetensors.torch import load_file

    from lightning_trainer.serving.adapter import ADAPTER_WEIGHTS

    base = tiny_models(architecture, tied=tied)
    trained = trainer(model_dir=base, serving_dtype="bfloat16")
    trained.step(batch(1))
    before = _weights(trained)
    publication = trained.publish(tmp_path / ADAPTER_WEIGHTS, 1)
    assert all(bool((value == before[name]).all()) for name, value in _weights(trained).items())

    shape = publication.adapter
    assert shape is not None
    assert (shape.rank, shape.alpha) == (4, 8)
    assert shape.target_modules == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    published = load_file(tmp_path / ADAPTER_WEIGHTS)
    with safe_open(base / "model.safetensors", framework="pt") as file:
        expected = shape.tensor_shapes({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
    assert {name: tuple(value.shape) for name, value in published.items()} == expected
    assert publication.tensor_count == len(expected) == 2 * 7 * 2

    shape.write_config(tmp_path)
    model, unrounded = _peft_model(base, tmp_path), _peft_model(base, tmp_path)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.bfloat16())  # the base as the engine holds it
    gaps = []
    for ids, logprobs in zip(publication.probe.token_ids, publication.probe.logprobs, strict=True):
        assert logprobs == pytest.approx(_logprobs(model, ids), abs=1e-5)
        gaps += [abs(a - b) for a, b in zip(logprobs, _logprobs(unrounded, ids), strict=True)]
    assert max(gaps) > 1e-4, "rounding must be visible, or the test shows nothing"


@pytest.mark.verl
def test_a_checkpoint_is_the_adapter_and_its_optimizer_and_is_gone_on_from(trainer, batch, tmp_path):
    whole, broken = trainer(), trainer()
    for step in (1, 2):
        whole.step(batch(step))
        broken.step(batch(step))
    broken.save(tmp_path / "step-2", 2)
    parameters = sum(value.numel() for value in broken.module.parameters() if value.requires_grad)
    size = sum(file.stat().st_size for file in (tmp_path / "step-2").rglob("*") if file.is_file())
    # The adapter twice (for going on, and for PEFT), two moments of it, and names; the model alone has 4 * 98,624.
    assert 4 * 4 * parameters < size < 4 * 4 * parameters + 100_000
    again = trainer()
    assert again.load(tmp_path / "step-2") == 2
    reports = [one.step(batch(3)) for one in (whole, again)]
    assert reports[0].metrics == reports[1].metrics
    ours, theirs = _weights(whole), _weights(again)
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


@pytest.mark.verl
@pytest.mark.parametrize(
    ("saved", "loaded", "said"),
    [
        (None, _LORA, "holds all weights, and the policy trains an adapter of rank 4, alpha 8, on down_proj, "),
        (_LORA, None, "holds an adapter of rank 4, alpha 8, on .*, and the policy trains all weights; go on with"),
        (_LORA, LoraConfig(rank=2, alpha=8), "an adapter of rank 4, alpha 8, .* trains an adapter of rank 2, alpha 8"),
        # Their matrices fit, and mean other weights.
        (
            _LORA,
            LoraConfig(rank=4, alpha=16),
            "an adapter of rank 4, alpha 8, .* trains an adapter of rank 4, alpha 16",
        ),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(saved, loaded, said, trainer, tmp_path):
    trainer(lora=saved).save(tmp_path / "step-1", 1)
    with pytest.raises(TrainingError, match=said) as refused:
        trainer(lora=loaded).load(tmp_path / "step-1")
    assert "\n" not in str(refused.value)


@pytest.mark.verl
def test_an_adapter_of_another_model_of_the_same_shape_is_refused(trainer, tiny_models, tmp_path):
    from safetensors.torch import load_file, save_file

    trainer().save(tmp_path / "step-1", 1)
    other = tmp_path / "other"
    shutil.copytree(tiny_models(), other)
    trainer(model_dir=other).load(tmp_path / "step-1")  # the same one in another place
    weights = load_file(other / "model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        TrainingError, match=r"was trained from other weights than those of .*other; go on with the model"
    ):
        trainer(model_dir=other).load(tmp_path / "step-1")


@pytest.mark.verl
def test_a_checkpoint_holds_an_adapter_for_peft(trainer, tiny_models, batch, tmp_path):
    trained = trainer()
    trained.step(batch(1))
    trained.save(tmp_path / "step-1", 1)
    assert not (tmp_path / "step-1" / "huggingface").exists()
    model = _peft_model(tiny_models(), tmp_path / "step-1" / "adapter")
    ids = [5, 17, 300, 2]
    assert trained.score([ids])[0] == pytest.approx(_logprobs(model, ids), abs=1e-5)


@pytest.mark.verl
def test_the_model_below_the_adapter_is_the_reference(trainer, tiny_models, batch):
    """The same numbers as with the model loaded a second time; and the adapter is there again afterwards."""
    from lightning_trainer.training.update.host import ModelHost

    reports = []
    for reference_dir in (None, tiny_models()):
        trained = trainer(kl_loss_coef=0.1, reference_dir=reference_dir)
        assert isinstance(trained._learner.reference, ModelHost) == (reference_dir is not None)
        reports.append([trained.step(batch(step)).metrics for step in (1, 2, 3)])
    for ours, theirs in zip(*reports, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    kl = [metrics["kl_loss"] for metrics in reports[0]]
    assert kl[0] == pytest.approx(0.0, abs=1e-9)
    assert kl[2] > 1e-6
    assert all(math.isfinite(value) for value in kl)


@pytest.mark.verl
@pytest.mark.parametrize(
    ("modules", "because"), [(("q_proj", "query"), "names query, and the model has no"), (("query",), "takes no such")]
)
def test_a_layer_that_the_model_lacks_is_refused(modules, because, trainer):
    with pytest.raises(TrainingError, match=because):
        trainer(lora=LoraConfig(target_modules=modules))


@pytest.mark.verl
def test_an_adapter_learns_what_was_rewarded_and_unlearns_what_was_not(trainer, sample):
    trained = trainer()
    answers = {"won": [1, 2, 3, 4], "lost": [1, 2, 5, 6]}

    def scores() -> dict[str, float]:
        return {name: sum(trained.score([ids])[0][1:]) for name, ids in answers.items()}

    before = scores()
    for step in (1, 2, 3):
        logprobs = {name: (0.0, *trained.score([ids])[0]) for name, ids in answers.items()}
        samples = (
            replace(
                sample(name, ids, [0, 0, 1, 1], group="g", credit=float(name == "won")),
                behavior_logprobs=logprobs[name],
            )
            for name, ids in answers.items()
        )
        trained.step(TrainingBatch("tiny", step, tuple(samples)))
    after = scores()
    assert after["won"] > before["won"]
    assert after["lost"] < before["lost"]
