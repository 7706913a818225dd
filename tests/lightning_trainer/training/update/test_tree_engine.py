"""The tree engine computes what verl's own engine computes: log-probabilities, loss, gradients."""

import dataclasses
from typing import Any

import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.errors import TrainingError

pytestmark = pytest.mark.verl

_SHAPES = (
    "shared prefixes",
    "forks inside responses",
    "duplicates",
    "no sharing",
    "masks with holes",
    "prompts inside responses",
)
_TOLERANCE = 1e-5


class _Engines:
    """A stock and a tree worker on the same weights; an update gives its gradients and changes nothing."""

    def __init__(self, settings, changes):
        from lightning_trainer.training.update.worker import UpdateWorker

        self.workers = {
            attention: UpdateWorker(settings(attention=attention, lr=0.0, **changes)) for attention in ("stock", "tree")
        }
        for worker in self.workers.values():
            _fill_adapter(worker.module)

    def updates(self, samples, advantages):
        for name, worker in self.workers.items():
            gradients = {}

            def keep(worker: Any = worker, gradients=gradients, step=worker.engine.optimizer_step):
                for parameter, value in worker.module.named_parameters():
                    if not value.requires_grad:
                        assert value.grad is None
                        continue
                    gradients[parameter] = value.grad.full_tensor().clone()
                worker.engine.optimizer_step = step
                return 0.0

            worker.engine.optimizer_step = keep
            yield name, worker.train(samples, advantages), gradients


def _fill_adapter(module):
    """B starts at zero, and with it the gradient of A."""
    import torch

    source = torch.Generator().manual_seed(1)
    for name, parameter in module.named_parameters():
        if ".lora_B." in name:
            local = parameter.data.to_local()
            local.copy_(0.1 * torch.randn(local.shape, generator=source))


@pytest.fixture(scope="module")
def engines_of(tiny_models, sections):
    from lightning_trainer.training.settings import TrainerSettings

    made = {}

    def of(**changes):
        key = tuple(sorted(changes.items()))
        if key not in made:
            base = {"policy": "tiny", "model_dir": tiny_models(), "max_tokens_per_micro_batch": 256}
            made[key] = _Engines(lambda **more: TrainerSettings(**sections({**base, **more})), changes)
        return made[key]

    return of


def _assert_equal(engines, samples):
    import torch

    from lightning_trainer.training.update.estimation.advantages import token_advantages

    advantages = token_advantages(samples, "grpo", AlgorithmConfig())
    (_, stock, stock_gradients), (_, tree, tree_gradients) = engines.updates(samples, advantages)
    assert tree.metrics["loss"] == pytest.approx(stock.metrics["loss"], abs=_TOLERANCE)
    assert stock_gradients.keys() == tree_gradients.keys()
    assert max(gradient.abs().max() for gradient in stock_gradients.values()) > 1e-3
    for name, gradient in stock_gradients.items():
        torch.testing.assert_close(tree_gradients[name], gradient, rtol=0, atol=_TOLERANCE, msg=name)
    sequences = [sample.token_ids for sample in samples]
    for of_worker in (lambda worker: worker.logprobs(samples), lambda worker: worker.score(sequences)):
        for ours, theirs in zip(*map(of_worker, engines.workers.values()), strict=True):
            assert ours == pytest.approx(theirs, abs=_TOLERANCE)
    return stock, tree


@pytest.mark.parametrize("shape", _SHAPES)
def test_logprobs_loss_and_gradients_are_the_stock_engines(shape, engines_of, samples_of_shape):
    _assert_equal(engines_of(), samples_of_shape(0, shape))


@pytest.mark.parametrize("temperatures", [(0.7,), (1.0, 0.5, 1.7)], ids=["one", "several"])
@pytest.mark.parametrize("shape", ["shared prefixes", "duplicates"])
def test_at_the_temperature_that_each_sample_was_drawn_at(temperatures, shape, engines_of, samples_of_shape):
    samples = [
        dataclasses.replace(sample, temperature=temperatures[index % len(temperatures)])
        for index, sample in enumerate(samples_of_shape(0, shape))
    ]
    _assert_equal(engines_of(), samples)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_the_forks(seed, engines_of, samples_of_shape):
    _assert_equal(engines_of(), samples_of_shape(seed, "forks inside responses"))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens_per_micro_batch": 100},
        {"gradient_checkpointing": True},
        {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
    ],
    ids=["many micro-batches", "gradient checkpointing", "sequence-level loss"],
)
def test_and_the_settings(changes, engines_of, samples_of_shape):
    _assert_equal(engines_of(**changes), samples_of_shape(0, "masks with holes"))


@pytest.mark.parametrize(
    "lora",
    [{"rank": 4}, {"rank": 2, "alpha": 16, "target_modules": ("q_proj", "down_proj")}],
    ids=["all", "two layers"],
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapters_gradients_are_the_stock_engines(lora, checkpointing, engines_of, samples_of_shape):
    from lightning_trainer.config.policies.updates import LoraConfig

    engines = engines_of(lora=LoraConfig(**lora), gradient_checkpointing=checkpointing)
    _assert_equal(engines, samples_of_shape(0, "forks inside responses"))
    trained = {name for name, value in engines.workers["tree"].module.named_parameters() if value.requires_grad}
    layers = len(lora.get("target_modules", range(7)))
    assert len(trained) == 2 * 2 * layers  # A and B of each in two layers
    assert all(".lora_" in name for name in trained)


def test_another_architecture_with_its_own_output_head(tiny_models, engines_of, samples_of_shape):
    _assert_equal(engines_of(model_dir=tiny_models("qwen2", tied=False)), samples_of_shape(0, "shared prefixes"))


def test_every_shared_token_is_computed_once(engines_of, samples_of_shape):
    samples = samples_of_shape(0, "duplicates")
    stock, tree = _assert_equal(engines_of(), samples)
    assert stock.tokens_computed == 2 * (3 * 37 + 29)
    assert tree.tokens_computed == 2 * 36  # the last token of a sample has no successor to predict


def test_in_bfloat16_the_gradient_keeps_direction_and_length(tiny_models, engines_of, samples_of_shape):
    import torch

    samples = samples_of_shape(0, "shared prefixes")
    advantages = {sample.sample_id: [1.0] * len(sample.token_ids) for sample in samples}
    flat = []
    for dtype in ("float32", "bfloat16"):
        (*_, gradients) = list(engines_of(dtype=dtype).updates(samples, advantages))[1]
        flat.append(torch.cat([gradient.flatten() for gradient in gradients.values()]))
    exact, rounded = flat
    assert torch.nn.functional.cosine_similarity(exact, rounded, 0) > 0.99
    assert rounded.norm() / exact.norm() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("mistral", {"sliding_window": 16}, "sliding_window = 16"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, "sliding_attention"),
        ("llama", {"attention_dropout": 0.1}, "attention_dropout = 0.1"),
    ],
)
def test_what_it_cannot_compute_is_refused_by_name(architecture, changes, named, tiny_models, settings):
    from lightning_trainer.training.update.worker import UpdateWorker

    model_dir = tiny_models(architecture, tied=False, **changes)
    with pytest.raises(TrainingError, match=named) as refused:
        UpdateWorker(settings(model_dir=model_dir, attention="tree"))
    assert 'attention = "stock"' in str(refused.value)


_LATENT_ATTENTION = {
    **{"first_k_dense_replace": 2, "q_lora_rank": None, "kv_lora_rank": 16, "num_key_value_heads": 4},
    **{"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16},
}


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("falcon", {"ffn_hidden_size": 128}, "FalconForCausalLM"),
        ("mistral", {"sliding_window": 16}, "sliding_window = 16"),
        ("deepseek_v3", _LATENT_ATTENTION, "v_head_dim = 16"),
    ],
    ids=["attention of its own", "attention it does not know", "values smaller than keys"],
)
def test_a_model_that_it_cannot_compute_is_left_to_verls_engine_which_is_said(
    architecture, changes, named, tiny_models, settings, samples_of_shape, caplog
):
    from lightning_trainer.training.update.worker import UpdateWorker

    model_dir = tiny_models(architecture, tied=False, **changes)
    samples = samples_of_shape(0, "shared prefixes")
    found = []
    for attention in ("auto", "stock"):
        worker = UpdateWorker(settings(model_dir=model_dir, attention=attention))
        assert not worker.tree
        advantages = {sample.sample_id: [1.0] * len(sample.token_ids) for sample in samples}
        found.append((worker.logprobs(samples), worker.train(samples, advantages).metrics["loss"]))
    assert found[0] == found[1]
    (warning,) = [record.getMessage() for record in caplog.records if "verl's own engine computes" in record.message]
    assert named in warning


def test_in_bfloat16_the_fallback_computes_as_the_stock_engine(tiny_models, settings, samples_of_shape):
    from lightning_trainer.training.update.worker import UpdateWorker

    model_dir, samples = tiny_models("mistral", sliding_window=16), samples_of_shape(0, "duplicates")
    auto, stock = (
        UpdateWorker(settings(model_dir=model_dir, attention=attention, dtype="bfloat16")).logprobs(samples)
        for attention in ("auto", "stock")
    )
    assert auto == stock
