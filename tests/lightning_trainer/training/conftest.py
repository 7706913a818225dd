"""Tiny models and samples of random tokens; verl is imported only by the tests that ask for a trainer."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.policies.updates import OptimizerConfig
from lightning_trainer.config.training import TrainingConfig
from lightning_trainer.sampling import Shaping, support_of
from lightning_trainer.training.settings import TrainerSettings, one_thread
from lightning_trainer.types import Sample, Segment

VOCABULARY = 512
POLICY = "tiny"


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory) -> Callable[..., Path]:
    """Make a seeded two-layer model folder; the same arguments give the same folder."""
    made: dict[tuple, Path] = {}

    def make(architecture: str = "llama", *, tied: bool = True, **changes) -> Path:
        key = (architecture, tied, *sorted(changes.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp(architecture)
            _write_model(made[key], architecture, tied, changes)
        return made[key]

    return make


def _write_model(folder: Path, architecture: str, tied: bool, changes: dict) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        architecture,
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": tied,
            **changes,
        },
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        # Larger than the usual initialization: distributions that differ from token to token.
        parameter.data.mul_(3.0) if parameter.dim() > 1 else parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)


@pytest.fixture
def settings(tiny_models) -> Callable[..., TrainerSettings]:
    def make(**changes) -> TrainerSettings:
        fields = {"policy": POLICY, "model_dir": tiny_models(), "lr": 1e-3, "max_tokens_per_micro_batch": 256}
        return TrainerSettings(**in_sections({**fields, **changes}))

    return make


def in_sections(changes: dict) -> dict:
    """Put settings of the algorithm, the optimizer and ``[training]`` where they belong.

    Those of the last two are not validated: tests keep weights at rest (``lr = 0``) and name a GPU that is not here.
    """
    rest = dict(changes)
    of_algorithm, of_optimizer, of_training = (
        {name: rest.pop(name) for name in changes if name in section.model_fields}
        for section in (AlgorithmConfig, OptimizerConfig, TrainingConfig)
    )
    if of_algorithm:
        algorithm = AlgorithmConfig(**of_algorithm)
        rest |= {"algorithm": algorithm, "advantage": algorithm.advantage}
    if of_optimizer:
        rest["optimizer"] = OptimizerConfig().model_copy(update=of_optimizer)
    if of_training:
        rest["training"] = one_thread().model_copy(update=of_training)
    return rest


@pytest.fixture(scope="session")
def sections() -> Callable[[dict], dict]:
    return in_sections


def make_sample(
    name: str,
    token_ids: Sequence[int],
    mask: Sequence[int],
    *,
    group: str,
    credit: float | None,
    logprobs: Sequence[float] | None = None,
) -> Sample:
    """A sample whose runs of masked-in tokens are the transitions of one attempt."""
    starts = [i for i, bit in enumerate(mask) if bit and not mask[i - 1]]
    stops = [i + 1 for i, bit in enumerate(mask) if bit and (i + 1 == len(mask) or not mask[i + 1])]
    return Sample(
        sample_id=name,
        policy=POLICY,
        agent="agent",
        group_id=group,
        attempt_id=f"attempt-{name}",
        token_ids=tuple(token_ids),
        loss_mask=tuple(mask),
        behavior_logprobs=tuple(logprobs or (-5.0 * bit for bit in mask)),
        segments=tuple(
            Segment(start, stop, f"{name}/{start}", 0, credit, f"attempt-{name}")
            for start, stop in zip(starts, stops, strict=True)
        ),
    )


def random_samples(seed: int, shape: str) -> list[Sample]:
    """Batches that share what trees must get right; see the names."""
    return _SHAPES[shape](random.Random(seed))


def _tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(VOCABULARY) for _ in range(count)]


def _sampled(
    source: random.Random, group: int, index: int, prompt: list[int], response: list[int], mask=None
) -> Sample:
    mask = [0] * len(prompt) + (mask or [1] * len(response))
    logprobs = [-source.uniform(4.0, 8.0) * bit for bit in mask]
    return make_sample(
        f"g{group}-{index}", prompt + response, mask, group=f"g{group}", credit=source.random(), logprobs=logprobs
    )


def _shared_prefixes(source: random.Random) -> list[Sample]:
    common, samples = _tokens(source, 40), []
    for group in range(4):
        own = _tokens(source, source.randint(3, 12))
        samples += [_sampled(source, group, i, common + own, _tokens(source, source.randint(1, 20))) for i in range(4)]
    return samples


def _forks_inside_responses(source: random.Random) -> list[Sample]:
    common, samples = _tokens(source, 20), []
    for group in range(3):
        prompt, stem = common + _tokens(source, 5), _tokens(source, 24)
        for i in range(5):
            response = stem[: source.randint(0, 24)] + _tokens(source, source.randint(1, 12))
            samples.append(_sampled(source, group, i, prompt, response))
    source.shuffle(samples)
    return samples


def _duplicates(source: random.Random) -> list[Sample]:
    samples = []
    for group in range(2):
        prompt, response = _tokens(source, 20), _tokens(source, 17)
        samples += [_sampled(source, group, i, prompt, response) for i in range(3)]
        samples.append(_sampled(source, group, 3, prompt, response[:9]))  # the beginning of another
    return samples


def _no_sharing(source: random.Random) -> list[Sample]:
    return [
        _sampled(source, i // 4, i, _tokens(source, source.randint(1, 40)), _tokens(source, source.randint(1, 40)))
        for i in range(8)
    ]


def _masks_with_holes(source: random.Random) -> list[Sample]:
    samples = []
    for group in range(3):
        prompt, first, observed = _tokens(source, 15), _tokens(source, 10), _tokens(source, 6)
        for i in range(4):
            call = first if i < 2 else _tokens(source, 10)
            second = _tokens(source, source.randint(1, 9))
            mask = [1] * len(call) + [0] * len(observed) + [1] * len(second)
            tail = _tokens(source, source.randint(0, 3))  # after the last sampled token
            mask += [0] * len(tail)
            samples.append(_sampled(source, group, i, prompt, call + observed + second + tail, mask))
    return samples


def _prompts_inside_responses(source: random.Random) -> list[Sample]:
    common = _tokens(source, 30)  # what one sample was given, another one wrote
    samples = []
    for i in range(6):
        cut = source.randint(4, 20)
        samples.append(_sampled(source, i // 3, i, common[:cut], common[cut:] + _tokens(source, source.randint(1, 9))))
    return samples


_SHAPES = {
    "shared prefixes": _shared_prefixes,
    "forks inside responses": _forks_inside_responses,
    "duplicates": _duplicates,
    "no sharing": _no_sharing,
    "masks with holes": _masks_with_holes,
    "prompts inside responses": _prompts_inside_responses,
}


@pytest.fixture(scope="session")
def samples_of_shape() -> Callable[[int, str], list[Sample]]:
    return random_samples


def drawn_somehow(samples: Sequence[Sample], seed: int, *, temperatures=(1.0,)) -> list[Sample]:
    """The same samples, as if a grammar, top-p, biases or penalties had been there when each call was sampled.

    What was left holds the sampled token, now and then nothing else: that token is masked. Neighbours differ, though
    they may share their tokens.
    """
    source, made = random.Random(seed), []
    for sample in samples:
        mask, logprobs = list(sample.loss_mask), list(sample.behavior_logprobs)
        segments = []
        for segment in sample.segments:
            left = [_left(source, token) for token in sample.token_ids[segment.start : segment.end]]
            left[-1] = _left(source, sample.token_ids[segment.end - 1], alone=False)
            for place, entries in enumerate(left):
                if entries is not None and len(entries) == 1:
                    mask[segment.start + place], logprobs[segment.start + place] = 0, 0.0
            support = source.choice([None, support_of(VOCABULARY, left)])
            if support is None:
                mask[segment.start : segment.end] = sample.loss_mask[segment.start : segment.end]
                logprobs[segment.start : segment.end] = sample.behavior_logprobs[segment.start : segment.end]
            shaping = source.choice([None, _shaping(source, sample.token_ids)])
            segments.append(replace(segment, support=support, shaping=shaping))
        made.append(
            replace(
                sample,
                loss_mask=tuple(mask),
                behavior_logprobs=tuple(logprobs),
                segments=tuple(segments),
                temperature=source.choice(temperatures),
            )
        )
    return made


def _left(source: random.Random, token: int, *, alone: bool = True) -> list[int] | None:
    size = source.choice(([1] if alone else []) + [2, 5, 60, VOCABULARY - 3, VOCABULARY])
    return None if size == VOCABULARY else sorted({token, *source.sample(range(VOCABULARY), size - 1)})


def _shaping(source: random.Random, tokens: Sequence[int]) -> Shaping:
    biased = sorted({*source.sample(range(VOCABULARY), 3), source.choice(tokens)})
    return Shaping(
        logit_bias=tuple((token, source.uniform(-3, 3)) for token in biased),
        presence_penalty=source.choice([0.0, 0.7]),
        frequency_penalty=source.choice([0.0, -0.4]),
        repetition_penalty=source.choice([1.0, 1.3, 0.8]),
    )


@pytest.fixture(scope="session")
def drawn() -> Callable[..., list[Sample]]:
    return drawn_somehow


@pytest.fixture
def sample() -> Callable[..., Sample]:
    return make_sample
