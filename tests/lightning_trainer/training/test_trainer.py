"""A step is its formula and nothing else decides it; a checkpoint is gone on from; a publication is what is served."""

import json
import math
import shutil

import pytest

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.types import TrainingBatch

pytestmark = pytest.mark.verl


@pytest.fixture
def trainer(settings):
    from lightning_trainer.training.trainer import Trainer

    return lambda **changes: Trainer(settings(**changes))


@pytest.fixture
def batch(samples_of_shape):
    return lambda step: TrainingBatch(
        policy="tiny", step=step, samples=tuple(samples_of_shape(step, "masks with holes"))
    )


def _weights(trainer):
    return {name: value.full_tensor().clone() for name, value in trainer.module.state_dict().items()}


def _assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_the_loss_is_clipped_ppo_over_all_trained_tokens(tiny_models, trainer, batch):
    """Schulman et al. 2017, equation 7, dual clip of Ye et al. 2020, mean over the batch's trained tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    low, high, dual = 0.1, 0.3, 3.0
    step = batch(1)
    report = trainer(clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=dual).step(step)
    model = AutoModelForCausalLM.from_pretrained(tiny_models(), dtype=torch.float32)
    losses, clipped = [], 0
    for sample in step.samples:
        ids = torch.tensor([sample.token_ids])
        logprobs = model(ids).logits[0].log_softmax(-1)
        for t in range(1, len(sample.token_ids)):
            if not sample.loss_mask[t]:
                continue
            ratio = math.exp(logprobs[t - 1, sample.token_ids[t]].item() - sample.behavior_logprobs[t])
            advantage = report.advantages[sample.sample_id][t]
            surrogate = max(-advantage * ratio, -advantage * min(max(ratio, 1 - low), 1 + high))
            losses.append(min(surrogate, -advantage * dual) if advantage < 0 else surrogate)
            clipped += surrogate > -advantage * ratio
    assert report.metrics["actor/pg_loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert 0 < clipped < len(losses), "the batch must meet both sides of the clip"
    assert report.tokens_trained == len(losses)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_is_decided_by_weights_and_batch_alone(threads, trainer, batch):
    first, second = trainer(threads=threads), trainer(threads=threads)
    reports = [first.step(batch(1)), first.step(batch(2)), second.step(batch(1)), second.step(batch(2))]
    assert reports[0].metrics == reports[2].metrics
    assert reports[1].metrics == reports[3].metrics
    _assert_same(_weights(first), _weights(second))


def test_the_learning_rate_rises_falls_along_a_cosine_and_stays_down(trainer, batch, tmp_path):
    """Loshchilov & Hutter 2017 (SGDR), equation 5, without restarts; a checkpoint goes on where it was. No step of the
    warm-up is wasted at a rate of 0."""
    schedule = {"lr": 1e-3, "schedule": "cosine", "warmup_steps": 2, "total_steps": 6, "min_lr_ratio": 0.1}
    first = trainer(**schedule)
    rates = [first.step(batch(step)).metrics["lr"] for step in (1, 2, 3)]
    first.save(tmp_path / "checkpoint", 3)
    again = trainer(**schedule)
    again.load(tmp_path / "checkpoint")
    rates += [again.step(batch(step)).metrics["lr"] for step in (4, 5, 6, 7, 8)]
    expected = [1e-4 + 9e-4 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, *expected, 1e-4, 1e-4])


def test_mismatch_is_measured_on_the_trained_tokens_of_all_micro_batches(tiny_models, trainer, batch):
    import torch
    from transformers import AutoModelForCausalLM

    step = batch(1)
    model = AutoModelForCausalLM.from_pretrained(tiny_models(), dtype=torch.float32)
    gaps = []
    for sample in step.samples:
        logprobs = model(torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)
        gaps += [
            abs(logprobs[t - 1, token].item() - sample.behavior_logprobs[t])
            for t, token in enumerate(sample.token_ids)
            if sample.loss_mask[t]
        ]
    for budget in (4096, 64):
        metrics = trainer(max_tokens_per_micro_batch=budget).step(step).metrics
        assert metrics["mismatch/abs_mean"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-5)
        assert metrics["mismatch/abs_max"] == pytest.approx(max(gaps), abs=1e-5)


def test_a_trainer_that_is_further_on_goes_back_to_a_checkpoint(trainer, batch, tmp_path):
    went_back, straight = trainer(), trainer()
    went_back.step(batch(1))
    went_back.save(tmp_path / "checkpoint", 1)
    went_back.step(batch(2))
    assert went_back.load(tmp_path / "checkpoint") == 1
    reports = [went_back.step(batch(3)), straight.step(batch(1)), straight.step(batch(3))]
    assert reports[0].metrics == reports[2].metrics
    _assert_same(_weights(went_back), _weights(straight))


def test_scoring_and_publishing_change_nothing(trainer, batch, tmp_path):
    plain, looked_at = trainer(serving_dtype="bfloat16"), trainer(serving_dtype="bfloat16")
    for step in (1, 2):
        plain.step(batch(step))
        looked_at.score([[1, 2, 3]])
        looked_at.step(batch(step))
        looked_at.publish(tmp_path / "weights", step)
    _assert_same(_weights(plain), _weights(looked_at))


def test_a_loaded_checkpoint_goes_on_as_if_nothing_had_happened(trainer, batch, tmp_path):
    whole, broken = trainer(), trainer()
    for step in (1, 2, 3):
        whole.step(batch(step))
    for step in (1, 2):
        broken.step(batch(step))
    broken.save(tmp_path / "step-2", 2)
    again = trainer()
    assert again.load(tmp_path / "step-2") == again.steps_done == 2
    again.step(batch(3))
    _assert_same(_weights(whole), _weights(again))


def test_a_loaded_checkpoint_goes_on_with_the_optimizer_that_is_configured_now(trainer, batch, tmp_path):
    before = trainer()
    before.step(batch(1))
    before.save(tmp_path / "step-1", 1)
    again = trainer(lr=2e-3, betas=(0.8, 0.95), weight_decay=0.1)
    again.load(tmp_path / "step-1")
    again.step(batch(2))
    (group,) = again._learner.policy.engine.optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (2e-3, (0.8, 0.95), 0.1)


def test_a_loaded_checkpoint_goes_on_with_the_schedule_that_is_configured_now(trainer, batch, tmp_path):
    before = trainer()
    for step in (1, 2, 3):
        before.step(batch(step))
    before.save(tmp_path / "step-3", 3)
    for total_steps, wanted in ((2, 1e-4), (6, 1e-4 + 9e-4 / 2)):  # past its end, and half-way
        again = trainer(schedule="cosine", total_steps=total_steps, min_lr_ratio=0.1)
        again.load(tmp_path / "step-3")
        assert again.step(batch(4)).metrics["lr"] == pytest.approx(wanted)


def test_saving_leaves_nothing_elsewhere(trainer, tmp_path, monkeypatch):
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    trainer().save(tmp_path / "step-1", 1)
    assert list(elsewhere.iterdir()) == []


def test_a_checkpoint_is_a_model_for_transformers(trainer, batch, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    trained = trainer()
    trained.step(batch(1))
    trained.save(tmp_path / "step-1", 1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1" / "huggingface", dtype=torch.float32)
    ids = [5, 17, 300, 2]
    logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [logprobs[i, token].item() for i, token in enumerate(ids[1:])]
    assert trained.score([ids])[0] == pytest.approx(expected, abs=1e-5)
    _assert_same(_weights(trained), {name: value.detach() for name, value in model.state_dict().items()})


@pytest.mark.parametrize(("tied", "architecture"), [(True, "llama"), (False, "qwen2")])
def test_a_publication_has_the_names_of_the_model_it_came_from(tied, architecture, tiny_models, trainer, tmp_path):
    from safetensors.torch import load_file

    folder = tiny_models(architecture, tied=tied)
    publication = trainer(model_dir=folder).publish(tmp_path / "weights", 0)
    published, original = load_file(tmp_path / "weights"), load_file(folder / "model.safetensors")
    assert publication.tensor_count == len(published)
    assert ("lm_head.weight" in published) == (not tied)
    _assert_same(published, original)


def test_the_probe_is_scored_on_the_rounded_values(trainer, batch, tmp_path):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    trained = trainer(serving_dtype="bfloat16")
    trained.step(batch(1))
    masters = _weights(trained)
    publication = trained.publish(tmp_path / "weights", 1)
    _assert_same(_weights(trained), masters)

    published = load_file(tmp_path / "weights")
    for name, value in published.items():
        assert torch.allclose(value.float(), masters[name], rtol=2**-7, atol=0)  # one of the two neighbors in bfloat16
    model = AutoModelForCausalLM.from_pretrained(trained._settings.model_dir, dtype=torch.float32)
    model.load_state_dict({name: value.float() for name, value in published.items()}, strict=False)
    probe = publication.probe
    rounded_differ = 0.0
    model_of_masters = AutoModelForCausalLM.from_pretrained(trained._settings.model_dir, dtype=torch.float32)
    model_of_masters.load_state_dict(masters, strict=False)
    for ids, logprobs in zip(probe.token_ids, probe.logprobs, strict=True):
        unrounded = model_of_masters(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = [expected[i, token].item() for i, token in enumerate(ids[1:])]
        assert logprobs == pytest.approx(expected, abs=1e-5)
        gaps = (abs(ours - unrounded[i, ids[i + 1]].item()) for i, ours in enumerate(logprobs))
        rounded_differ = max(rounded_differ, *gaps)
    assert rounded_differ > 1e-4, "rounding must be visible, or the test shows nothing"


def test_a_publication_proves_its_file(trainer, tmp_path):
    from lightning_trainer.serving.shared_memory import file_checksum

    publication = trainer(serving_dtype="bfloat16", probe_max_abs=0.25).publish(tmp_path / "weights", 3)
    assert publication.name == "tiny@v3"
    assert publication.dtype == "bfloat16"
    assert publication.tolerance.max_abs == 0.25
    assert publication.checksum == file_checksum(tmp_path / "weights")
    assert [path.name for path in tmp_path.iterdir()] == ["weights"], "nothing temporary is left"


def test_a_repeated_step_and_a_foreign_batch_are_refused(trainer, batch):
    trained = trainer()
    trained.step(batch(4))
    with pytest.raises(TrainingError, match=r"step 4 is done already \(the trainer is at step 4\)"):
        trained.step(batch(4))
    with pytest.raises(TrainingError, match="policy 'other' came to the trainer of 'tiny'"):
        trained.step(TrainingBatch(policy="other", step=5, samples=batch(5).samples))


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(trainer, sample):
    trained = trainer(normalize_by_std=False)
    before = _weights(trained)
    samples = [
        sample(name, [1, 2, 3], [0, 1, 1], group="g", credit=credit) for name, credit in (("a", 1e38), ("b", 0.0))
    ]
    report = trained.step(TrainingBatch(policy="tiny", step=1, samples=tuple(samples)))
    assert report.metrics["actor/update_skipped"] == 1.0
    assert all(math.isfinite(value) for value in report.metrics.values())
    _assert_same(_weights(trained), before)


def test_logprobs_that_are_no_numbers_are_refused(trainer, sample):
    samples = [
        sample(name, [1, 2], [0, 1], group="g", credit=credit, logprobs=[0.0, logprob])
        for name, credit, logprob in (("a", 1.0, -2.0), ("b", 0.0, math.nan))
    ]
    with pytest.raises(TrainingError, match="sample b: a behavior logprob is nan"):
        trainer().step(TrainingBatch(policy="tiny", step=1, samples=tuple(samples)))


def test_damaged_and_foreign_checkpoints_are_refused(tiny_models, trainer, tmp_path):
    trained = trainer()
    with pytest.raises(TrainingError, match="is not a whole checkpoint"):
        trained.load(tmp_path)
    trained.save(tmp_path / "mine", 1)
    with pytest.raises(TrainingError, match="checkpoint of policy 'tiny', not of 'other'"):
        trainer(policy="other").load(tmp_path / "mine")
    with pytest.raises(TrainingError, match="was trained from other weights"):
        trainer(model_dir=tiny_models("qwen2")).load(tmp_path / "mine")


def test_a_checkpoint_from_before_it_said_what_it_holds_is_refused_in_one_short_line(tiny_models, trainer, tmp_path):
    trainer().save(tmp_path / "mine", 1)
    manifest = json.loads((tmp_path / "mine" / "trainer.json").read_text())
    older = {name: value for name, value in manifest.items() if name not in ("model", "weights")}
    (tmp_path / "mine" / "trainer.json").write_text(json.dumps(older))
    assert trainer().load(tmp_path / "mine") == 1
    with pytest.raises(TrainingError, match="cannot load the checkpoint") as refused:
        trainer(model_dir=tiny_models(hidden_size=128)).load(tmp_path / "mine")
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "damage", [b"", b"\x80\x04 nothing that torch wrote", None], ids=["empty", "foreign", "cut off"]
)
@pytest.mark.parametrize("part", ["model", "optim", "extra_state"])
def test_every_damaged_part_of_a_checkpoint_is_told_in_a_sentence(part, damage, saved, tmp_path):
    trained, whole = saved
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    file = folder / f"{part}_world_size_1_rank_0.pt"
    file.write_bytes(file.read_bytes()[:-200] if damage is None else damage)
    with pytest.raises(TrainingError, match="is damaged"):
        trained.load(folder)


@pytest.fixture(scope="module")
def saved(tiny_models, tmp_path_factory):
    """A trainer, and a checkpoint of it."""
    from lightning_trainer.training.trainer import Trainer

    trained = Trainer(TrainerSettings(policy="tiny", model_dir=tiny_models()))
    folder = tmp_path_factory.mktemp("saved") / "step-1"
    trained.save(folder, 1)
    return trained, folder


def test_a_disk_that_refuses_is_told_in_a_sentence(trainer, tmp_path, monkeypatch):
    trained = trainer()
    with pytest.raises(TrainingError, match=r"cannot write the weights of version 1 to .*absent"):
        trained.publish(tmp_path / "absent" / "weights", 1)
    monkeypatch.setattr("torch.save", _refused)
    with pytest.raises(TrainingError, match=r"cannot write the checkpoint .*: the disk is full"):
        trained.save(tmp_path / "step-1", 1)
    assert list(tmp_path.iterdir()) == []


def _refused(*_, **__):
    raise RuntimeError("the disk is full")  # torch's own kind of error for it


def test_a_folder_without_a_model_is_refused(trainer, tmp_path):
    with pytest.raises(TrainingError, match=r"is not a model folder: it has no config\.json"):
        trainer(model_dir=tmp_path)


def test_one_token_has_nothing_to_score(trainer):
    with pytest.raises(TrainingError, match=r"cannot score the sequence \[7\]"):
        trainer().score([[1, 2], [7]])


def test_building_a_trainer_leaves_the_environment_as_it_was(trainer):
    import os

    before = dict(os.environ)
    trainer()
    changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
    assert changed <= {"GLOO_SOCKET_IFNAME", "LC_CTYPE"}
