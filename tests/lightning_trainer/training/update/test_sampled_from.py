"""Both engines train what was sampled: log q, loss and gradients are those of plain PyTorch, whatever was asked for."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from lightning_trainer.errors import TrainingError
from lightning_trainer.sampling import Shaping, entries_of, support_of
from lightning_trainer.types import TrainingBatch

pytestmark = pytest.mark.verl

_TOLERANCE = 1e-5
_ENGINES = ("tree", "stock")
_SHAPES = ("forks inside responses", "duplicates", "masks with holes")


@pytest.fixture(scope="module")
def workers(tiny_models, sections) -> Any:
    """By engine and settings; the weights never move."""
    from lightning_trainer.training.settings import TrainerSettings
    from lightning_trainer.training.update.worker import UpdateWorker

    @cache
    def of(engine: str, **changes) -> Any:
        fields = {"policy": "tiny", "model_dir": tiny_models(), "lr": 0.0, "max_tokens_per_micro_batch": 100}
        return UpdateWorker(TrainerSettings(**sections({**fields, "attention": engine, **changes})))

    return of


def _model(folder) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def _plain_logq(model, sample, *, entropies: list | None = None) -> dict[int, Any]:
    """``log q`` by position, one token at a time from the model's own logits."""
    import torch

    logits = model(torch.tensor([sample.token_ids])).logits[0]
    found = {}
    for segment in sample.segments:
        for position in range(segment.start, segment.end):
            if not sample.loss_mask[position]:
                continue
            scores = logits[position - 1].clone()
            if (shaping := segment.shaping) is not None:
                said = sample.token_ids[segment.start : position]
                for token, bias in shaping.logit_bias:
                    scores[token] += bias
                for token in set(sample.token_ids[:position]):
                    factor = 1 / shaping.repetition_penalty if scores[token] > 0 else shaping.repetition_penalty
                    scores[token] = scores[token] * factor
                for token in set(said):
                    scores[token] -= shaping.frequency_penalty * said.count(token) + shaping.presence_penalty
            scores = scores / sample.temperature
            if segment.support is not None and (index := segment.support.pattern_L[position - segment.start]) >= 0:
                left = list(entries_of(segment.support.patterns[index], segment.support.vocabulary))
                token = left.index(sample.token_ids[position])
                logq = scores[left].log_softmax(-1)
            else:
                token, logq = sample.token_ids[position], scores.log_softmax(-1)
            found[position] = logq[token]
            if entropies is not None:
                entropies.append(-(logq.exp() * logq).sum())
    return found


def _measured(model, samples) -> list:
    """The samples with the log-probabilities that an engine of the same weights would have recorded."""
    import torch

    made = []
    for sample in samples:
        with torch.no_grad():
            logq = _plain_logq(model, sample)
        values = [float(logq.get(position, 0.0)) for position in range(len(sample.token_ids))]
        made.append(replace(sample, behavior_logprobs=tuple(values)))
    return made


def _train(worker, samples, advantages) -> tuple[Any, dict[str, Any]]:
    gradients: dict[str, Any] = {}

    def keep(step=worker.engine.optimizer_step):
        for name, parameter in worker.module.named_parameters():
            gradients[name] = parameter.grad.full_tensor().clone()
        worker.engine.optimizer_step = step
        return 0.0

    worker.engine.optimizer_step = keep
    return worker.train(samples, advantages), gradients


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("engine", _ENGINES)
def test_log_q_loss_and_gradient_are_those_of_plain_pytorch(
    engine, shape, workers, tiny_models, samples_of_shape, drawn
):
    import torch

    model = _model(tiny_models())
    samples = _measured(model, drawn(samples_of_shape(1, shape), 1, temperatures=(1.0, 0.6)))
    assert any(0 in sample.loss_mask[s.start : s.end] for sample in samples for s in sample.segments)
    worker = workers(engine)
    for sample, found in zip(samples, worker.logprobs(samples), strict=True):
        assert found == pytest.approx(sample.behavior_logprobs, abs=_TOLERANCE)

    advantages = {sample.sample_id: [1.0 - 0.3 * i] * len(sample.token_ids) for i, sample in enumerate(samples)}
    update, gradients = _train(worker, samples, advantages)
    total, tokens = torch.zeros(()), 0
    for sample in samples:
        for position, logq in _plain_logq(model, sample).items():
            ratio = (logq - sample.behavior_logprobs[position]).exp()
            total = total - advantages[sample.sample_id][position] * ratio
            tokens += 1
    (total / tokens).backward()
    assert update.metrics["loss"] == pytest.approx(total.item() / tokens, abs=_TOLERANCE)
    assert update.metrics["mismatch/abs_max"] < _TOLERANCE
    assert update.metrics["actor/pg_clipfrac"] == 0.0
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert theirs.keys() == gradients.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=_TOLERANCE, msg=name)


@pytest.mark.parametrize("engine", _ENGINES)
def test_entropy_and_squares_are_those_of_q(engine, workers, tiny_models, samples_of_shape, drawn):
    import torch

    model, worker = _model(tiny_models()), workers(engine, entropy_coeff=0.1)
    samples = _measured(model, drawn(samples_of_shape(2, "forks inside responses"), 2))
    found = worker.measure(samples, "log_probs", "entropy", "sum_pi_squared")
    entropies: list = []
    for sample in samples:
        entropies.clear()
        positions = list(_plain_logq(model, sample, entropies=entropies))
        ours = [found["entropy"][sample.sample_id][position] for position in positions]
        assert ours == pytest.approx([float(value) for value in entropies], abs=1e-4)
        assert all(0 < found["sum_pi_squared"][sample.sample_id][position] <= 1 + 1e-5 for position in positions)

    zero = {sample.sample_id: [0.0] * len(sample.token_ids) for sample in samples}
    update, gradients = _train(worker, samples, zero)
    entropies.clear()
    for sample in samples:
        _plain_logq(model, sample, entropies=entropies)
    mean = torch.stack(entropies).mean()
    (-0.1 * mean).backward()
    assert update.metrics["actor/entropy_loss"] == pytest.approx(mean.item(), abs=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=_TOLERANCE, msg=name)


def test_two_answers_behind_the_same_tokens_have_each_the_choice_that_was_theirs(workers, sample):
    ids, mask = (5, 6, 7, 8), (0, 0, 1, 1)
    plain = sample("plain", ids, mask, group="g", credit=1.0)
    segment = replace(plain.segments[0], support=support_of(512, [[7, 9], [8, 9, 10]]))
    narrow = replace(plain, sample_id="narrow", segments=(segment,))
    biased = replace(plain.segments[0], shaping=Shaping(logit_bias=((7, 100.0),)))
    certain = replace(plain, sample_id="certain", segments=(biased,))
    worker = workers("tree")
    whole, of_two, sure = worker.logprobs([plain, narrow, certain])
    assert sure[2] == pytest.approx(0.0, abs=1e-6)
    assert sure[3] < -50
    assert all(a > b for a, b in zip(of_two[2:], whole[2:], strict=True))
    assert worker.logprobs([plain])[0] == pytest.approx(whole, abs=1e-6)


def test_the_divergence_from_a_reference_is_between_like_and_like(tiny_models, sections, samples_of_shape, drawn):
    """A reference of the same weights is at distance 0, and so are the engine's log-probabilities."""
    from lightning_trainer.training.settings import TrainerSettings
    from lightning_trainer.training.trainer import Trainer

    model = _model(tiny_models())
    samples = _measured(model, drawn(samples_of_shape(3, "masks with holes"), 3))
    fields = {
        "policy": "tiny",
        "model_dir": tiny_models(),
        "lr": 1e-3,
        "kl_loss_coef": 0.1,
        "old_logprobs": "trainer",
        "rollout_is": "token",
    }
    trainer = Trainer(TrainerSettings(**sections(fields)))
    report = trainer.step(TrainingBatch("tiny", 1, tuple(samples)))
    assert abs(report.metrics["kl_loss"]) < 1e-6
    assert report.metrics["mismatch/abs_max"] < _TOLERANCE
    assert report.metrics["rollout_corr/kl"] == pytest.approx(0.0, abs=_TOLERANCE)


def test_a_token_that_could_not_be_sampled_is_refused_before_anything_is_trained(settings, sample):
    from lightning_trainer.training.trainer import Trainer

    trainer = Trainer(settings(advantage="credit", max_tokens_per_micro_batch=64))
    good = sample("good", (5, 6, 7, 8), (0, 0, 1, 1), group="g", credit=1.0)
    other = sample("other", (5, 6, 9, 8), (0, 0, 1, 1), group="g", credit=0.0)
    wrong = replace(other.segments[0], support=support_of(512, [[1, 9], [1, 2]]))
    short = replace(other.segments[0], support=support_of(512, [[1, 9]]))
    before = copy.deepcopy(trainer.score([[1, 2, 3]]))
    for segment, said in ((wrong, "token 8 .number 1 of the response"), (short, "has 1 tokens and its response 2")):
        with pytest.raises(TrainingError, match=said):
            trainer.step(TrainingBatch("tiny", 1, (good, replace(other, segments=(segment,)))))
    assert trainer.score([[1, 2, 3]]) == before


def test_every_part_of_a_batch_knows_what_its_tokens_were_sampled_from(samples_of_shape, drawn):
    """verl cuts batches into parts and puts samples without trained tokens into them."""
    from verl.utils import tensordict_utils as tu

    from lightning_trainer.training.update.batch.packed import PackedSamples, filler
    from lightning_trainer.training.update.batch.sampled_from import slot_draws
    from lightning_trainer.training.update.batch.tensors import training_tensors

    samples = drawn(samples_of_shape(4, "masks with holes"), 4)
    batch = training_tensors(samples, {})
    for chosen in (list(range(len(samples))), [5, 2], [0], [7, 7, 1]):
        part = tu.index_select_tensor_dict(batch, chosen)
        found = slot_draws(part, PackedSamples(part))
        expected = []
        for sample in (samples[index] for index in chosen):
            for segment in sample.segments:
                for position in sample.trained_in(segment):
                    index = -1 if segment.support is None else segment.support.pattern_L[position - segment.start]
                    pattern = None if segment.support is None or index < 0 else segment.support.patterns[index]
                    plain = pattern is None and segment.shaping is None
                    before = sample.token_ids[:position]
                    expected.append(None if plain else (segment.shaping, pattern, before, segment.start))
        drawn_from = [None] * len(expected) if found is None else found.draw_of_S
        assert expected == [
            None if draw is None else (draw.shaping, draw.pattern, tuple(draw.before.tolist()), draw.prompt)
            for draw in drawn_from
        ]
    alone = filler(batch)
    nothing = slot_draws(alone, PackedSamples(alone))
    assert nothing is None or len(nothing.draw_of_S) == 1
    plainly = training_tensors(samples_of_shape(4, "masks with holes"), {})
    assert slot_draws(plainly, PackedSamples(plainly)) is None
