"""Both engines take the experts that were recorded: log-probabilities and gradients are those of the plain formula."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from lightning_trainer.errors import TrainingError
from lightning_trainer.experts import RoutedExperts
from lightning_trainer.types import TrainingBatch

pytestmark = pytest.mark.verl

_TOLERANCE = 1e-5
_ENGINES = ("tree", "stock")
_EXPERTS, _TOP_K, _LAYERS = 8, 2, 2
_MODEL = {"num_experts": _EXPERTS, "num_experts_per_tok": _TOP_K, "moe_intermediate_size": 32, "head_dim": 16}


@pytest.fixture(scope="module")
def folder(tiny_models) -> Any:
    return tiny_models("qwen3_moe", norm_topk_prob=True, **_MODEL)


@pytest.fixture(scope="module")
def workers(folder, sections) -> Any:
    """By engine and settings; the weights never move."""
    from lightning_trainer.training.settings import TrainerSettings
    from lightning_trainer.training.update.worker import UpdateWorker

    @cache
    def of(engine: str, **changes) -> Any:
        fields = {"policy": "tiny", "model_dir": folder, "lr": 0.0, "max_tokens_per_micro_batch": 100}
        return UpdateWorker(TrainerSettings(**sections({**fields, "attention": engine, **changes})))

    return of


def _routed_anyhow(samples, *, known_from: int = 0) -> list:
    """As if other weights had chosen the experts: at random, the same behind the same tokens."""

    def row(ids) -> bytes:
        source = random.Random(repr(ids))
        return bytes(expert for _ in range(_LAYERS) for expert in source.sample(range(_EXPERTS), _TOP_K))

    made = []
    for sample in samples:
        segments, begin = [], known_from
        for segment in sample.segments:
            ids = b"".join(row(sample.token_ids[: place + 1]) for place in range(begin, segment.end - 1))
            experts = RoutedExperts(begin, _LAYERS, _TOP_K, 1, ids)
            segments.append(replace(segment, routed_experts=experts))
            begin = segment.end - 1
        made.append(replace(sample, segments=tuple(segments)))
    return made


class _Plain:
    """The model with each block's formula written out, expert by expert, and the experts that it is told."""

    def __init__(self, folder) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self._told: dict[int, Any] = {}
        for layer, block in enumerate(self.model.model.layers):
            block.mlp.forward = self._block(layer, block.mlp)

    def logits(self, sample) -> Any:
        import torch

        self._told = {}
        for segment in sample.segments:
            experts = segment.routed_experts
            for place in range(len(experts) if experts else 0):
                row = experts.ids[place * experts.row_bytes : (place + 1) * experts.row_bytes]
                self._told[experts.start + place] = torch.tensor(list(row)).view(_LAYERS, _TOP_K)
        return self.model(torch.tensor([sample.token_ids])).logits[0]

    def logprobs(self, sample) -> dict[int, Any]:
        found = self.logits(sample).log_softmax(-1)
        return {t: found[t - 1, sample.token_ids[t]] for t, bit in enumerate(sample.loss_mask) if bit}

    def _block(self, layer: int, block: Any) -> Any:
        import torch

        def forward(hidden) -> Any:
            rows = []
            for place, state in enumerate(hidden[0]):
                probabilities = (block.gate.weight @ state).softmax(-1)
                told = self._told.get(place)
                chosen = probabilities.topk(_TOP_K).indices if told is None else told[layer]
                weights = probabilities[chosen] / probabilities[chosen].sum()
                total = torch.zeros_like(state)
                for weight, expert in zip(weights, chosen.tolist(), strict=True):
                    gate, up = (block.experts.gate_up_proj[expert] @ state).chunk(2)
                    total = total + weight * (block.experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up))
                rows.append(total)
            return torch.stack(rows)[None]

        return forward


@pytest.mark.parametrize("engine", _ENGINES)
@pytest.mark.parametrize("known_from", [0, 7])
def test_logprobs_are_those_of_the_experts_that_were_recorded(engine, known_from, folder, workers, samples_of_shape):
    import torch

    drawn = samples_of_shape(0, "masks with holes")
    samples, plain = _routed_anyhow(drawn, known_from=known_from), _Plain(folder)
    found = workers(engine).logprobs(samples)
    own = workers(engine).logprobs(drawn)
    moved = []
    for sample, ours, without in zip(samples, found, own, strict=True):
        with torch.no_grad():
            expected = plain.logprobs(sample)
        for place, value in expected.items():
            assert ours[place] == pytest.approx(value.item(), abs=_TOLERANCE)
            moved.append(abs(without[place] - value.item()))
    assert sum(moved) / len(moved) > 0.1, "the experts must make a difference"


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("engine", _ENGINES)
def test_gradients_flow_through_the_recorded_experts_and_their_router(
    engine, checkpointing, folder, workers, samples_of_shape
):
    import torch

    samples = _routed_anyhow(samples_of_shape(1, "shared prefixes")[:6], known_from=3)
    plain = _Plain(folder)
    with torch.no_grad():
        samples = [
            replace(
                sample,
                behavior_logprobs=tuple(known[t].item() if t in known else 0.0 for t in range(len(sample.token_ids))),
            )
            for sample in samples
            if (known := plain.logprobs(sample))
        ]
    source = random.Random(0)
    advantages = {sample.sample_id: [source.uniform(-1, 1) for _ in sample.token_ids] for sample in samples}
    trained = sum(sum(sample.loss_mask) for sample in samples)
    for sample in samples:  # the ratio is 1, so the gradient is the plain policy gradient's
        terms = [-advantages[sample.sample_id][t] * logprob for t, logprob in plain.logprobs(sample).items()]
        (torch.stack(terms).sum() / trained).backward()
    expected = {name: value.grad for name, value in plain.model.named_parameters()}

    worker = workers(engine, gradient_checkpointing=checkpointing)
    found: dict[str, Any] = {}

    def keep(step=worker.engine.optimizer_step):
        for name, value in worker.module.named_parameters():
            found[name] = value.grad.full_tensor().clone()
        worker.engine.optimizer_step = step
        return 0.0

    worker.engine.optimizer_step = keep
    update = worker.train(samples, advantages)
    assert update.metrics["mismatch/abs_mean"] < _TOLERANCE
    assert found.keys() == expected.keys()
    for layer in range(_LAYERS):
        assert found[f"model.layers.{layer}.mlp.gate.weight"].abs().max() > 1e-4, "the router learns, too"
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=_TOLERANCE, msg=name)


def _sampled_in_bfloat16(folder, samples) -> list:
    """The samples with log-probabilities and experts of the same model that computes in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    chosen: dict[int, Any] = {}
    for layer, block in enumerate(model.model.layers):
        block.mlp.gate.register_forward_hook(lambda *given, layer=layer: chosen.update({layer: given[-1][2]}))
    made = []
    for sample in samples:
        with torch.no_grad():
            found = model(torch.tensor([sample.token_ids])).logits[0].float().log_softmax(-1)
        logprobs = [
            found[t - 1, token].item() if bit else 0.0
            for t, (token, bit) in enumerate(zip(sample.token_ids, sample.loss_mask, strict=True))
        ]
        ids = torch.stack([chosen[layer] for layer in range(_LAYERS)], dim=1).to(torch.uint8)
        experts = RoutedExperts(0, _LAYERS, _TOP_K, 1, ids[:-1].numpy().tobytes())
        segments, begin = [], 0
        for segment in sample.segments:
            segments.append(replace(segment, routed_experts=experts.between(begin, segment.end - 1)))
            begin = segment.end - 1
        made.append(replace(sample, behavior_logprobs=tuple(logprobs), segments=tuple(segments)))
    return made


@pytest.mark.parametrize("engine", _ENGINES)
def test_where_rounding_chooses_other_experts_replay_brings_the_trainer_nearer(
    engine, folder, workers, samples_of_shape
):
    """Ma et al., arXiv 2510.11370, section 3: tokens with other experts are those that differ most."""
    samples = [
        replace(sample, sample_id=f"{seed}-{sample.sample_id}")
        for seed in range(4)
        for sample in samples_of_shape(seed, "no sharing")
    ]
    sampled = _sampled_in_bfloat16(folder, samples)
    without = [replace(s, segments=tuple(replace(g, routed_experts=None) for g in s.segments)) for s in sampled]
    apart = {}
    for name, given in (("replayed", sampled), ("own", without)):
        apart[name] = [
            abs(ours - theirs)
            for sample, found in zip(given, workers(engine).logprobs(given), strict=True)
            for ours, theirs, bit in zip(found, sample.behavior_logprobs, sample.loss_mask, strict=True)
            if bit
        ]
    mean = {name: sum(found) / len(found) for name, found in apart.items()}
    assert mean["replayed"] < 0.6 * mean["own"]
    assert max(apart["replayed"]) < 0.6 * max(apart["own"])


@pytest.mark.parametrize("shape", ["forks inside responses", "duplicates", "prompts inside responses"])
def test_the_tree_computes_what_the_stock_engine_does(shape, workers, samples_of_shape):
    samples = _routed_anyhow(samples_of_shape(0, shape))
    tree, stock = (workers(engine).logprobs(samples) for engine in _ENGINES)
    for ours, theirs in zip(tree, stock, strict=True):
        assert ours == pytest.approx(theirs, abs=_TOLERANCE)


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_batch_without_follows_one_with(engine, workers, samples_of_shape):
    samples = samples_of_shape(2, "no sharing")
    before = workers(engine).logprobs(samples)
    workers(engine).logprobs(_routed_anyhow(samples))
    assert workers(engine).logprobs(samples) == before


@pytest.mark.parametrize("engine", _ENGINES)
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"layers": 3}, "of 3 layers and the model has 2"), ({"layers": _LAYERS, "expert": 9}, "expert 9 was recorded")],
)
def test_experts_of_another_model_are_refused(engine, changes, sentence, workers, samples_of_shape):
    sample = samples_of_shape(0, "no sharing")[0]
    (segment,) = sample.segments
    layers, expert = changes["layers"], changes.get("expert", 0)
    experts = RoutedExperts(0, layers, _TOP_K, 1, bytes([expert, 1] * layers) * (segment.end - 1))
    with pytest.raises(TrainingError, match=sentence):
        workers(engine).logprobs([replace(sample, segments=(replace(segment, routed_experts=experts),))])


_FAMILIES = {
    "mixtral": {"num_local_experts": 8},
    "olmoe": {"num_experts": 8},
    "qwen2_moe": {"num_experts": 8, "shared_expert_intermediate_size": 32},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 16},
    "glm4_moe": {"n_routed_experts": 8, "first_k_dense_replace": 1, "head_dim": 16},
    "deepseek_v3": {
        "n_routed_experts": 8,
        "first_k_dense_replace": 1,
        **{"n_group": 4, "topk_group": 2, "q_lora_rank": None, "kv_lora_rank": 16, "num_key_value_heads": 4},
        **{"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16},
    },
}


@pytest.mark.parametrize("architecture", _FAMILIES)
def test_other_families_take_what_they_are_told(architecture, tiny_models):
    """What they are told makes a difference, its order does not, and of what is not known they choose as ever."""
    import torch
    from transformers import AutoModelForCausalLM

    from lightning_trainer.training.tree.expert_replay import ExpertReplay

    changes = {"num_experts_per_tok": _TOP_K, "moe_intermediate_size": 32, **_FAMILIES[architecture]}
    model = AutoModelForCausalLM.from_pretrained(tiny_models(architecture, tied=False, **changes))
    ids = torch.arange(20)[None]
    told = torch.stack([torch.stack([torch.randperm(_EXPERTS)[:_TOP_K] for _ in range(_LAYERS)]) for _ in range(20)])
    with torch.no_grad():
        own = model(ids).logits
        replay, found = ExpertReplay(model), []
        for experts, known in ((told, True), (told.flip(-1), True), (told, False), (None, None)):
            replay.use(experts, None if known is None else torch.full((20,), known))
            found.append(model(ids).logits)
    assert (found[0] - own).abs().max() > 0.05
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=_TOLERANCE)
    assert torch.equal(found[2], own)
    assert torch.equal(found[3], own)


def test_the_step_says_how_much_was_replayed(folder, settings, samples_of_shape):
    from lightning_trainer.training.trainer import Trainer

    samples = _routed_anyhow(samples_of_shape(0, "no sharing"))
    first = samples[0]
    samples[0] = replace(first, segments=(replace(first.segments[0], routed_experts=None),))
    report = Trainer(settings(model_dir=folder)).step(TrainingBatch(policy="tiny", step=1, samples=tuple(samples)))
    positions = [sample.segments[-1].end - 1 for sample in samples]
    assert report.metrics["experts/replayed"] == pytest.approx(1 - positions[0] / sum(positions))


def test_a_model_that_cannot_be_told_trains_as_it_always_did_and_says_so(
    tiny_models, settings, samples_of_shape, caplog
):
    from lightning_trainer.training.trainer import Trainer

    model_dir = tiny_models("granitemoe", tied=False, num_local_experts=_EXPERTS, num_experts_per_tok=_TOP_K)
    drawn = samples_of_shape(0, "no sharing")
    losses = []
    for samples in (_routed_anyhow(drawn), drawn):
        batch = TrainingBatch(policy="tiny", step=1, samples=tuple(samples))
        metrics = Trainer(settings(model_dir=model_dir, attention="stock")).step(batch).metrics
        losses.append(metrics["loss"])
        assert metrics.get("experts/replayed") == (0.0 if samples is not drawn else None)
    assert losses[0] == losses[1]
    assert "GraniteMoeForCausalLM has no layer whose experts can be told" in caplog.text


def test_a_publication_has_the_names_and_values_of_the_model_folder(folder, settings, tmp_path):
    """transformers computes with all experts of a layer in one tensor, the engine loads them one by one."""
    from safetensors.torch import load_file

    from lightning_trainer.training.trainer import Trainer

    path = tmp_path / "published.safetensors"
    Trainer(settings(model_dir=folder, serving_dtype="float32")).publish(path, 1)
    published, start = load_file(path), load_file(folder / "model.safetensors")
    assert published.keys() == start.keys()
    assert sum(".experts.7." in name for name in published) == 3 * _LAYERS
    for name, tensor in start.items():
        assert bool((published[name] == tensor).all()), name


def test_an_adapter_leaves_experts_and_routers_alone(folder, settings):
    from lightning_trainer.config.policies.updates import LoraConfig
    from lightning_trainer.training.update.adapter_weights import adapter_shape
    from lightning_trainer.training.update.worker import UpdateWorker

    lora = LoraConfig(rank=2)
    worker = UpdateWorker(settings(model_dir=folder, lora=lora))
    assert adapter_shape(worker.module, lora).target_modules == ("k_proj", "o_proj", "q_proj", "v_proj")
