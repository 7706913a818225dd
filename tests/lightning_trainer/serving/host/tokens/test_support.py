"""What the engine writes down of each token is what vLLM's own sampler left of the vocabulary."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from lightning_trainer.sampling import entries_of, pattern_of
from lightning_trainer.serving.host.tokens import support
from lightning_trainer.serving.host.tokens.support import Noted, note_rows, packed_pattern, restricts

pytestmark = pytest.mark.torch

ROWS, VOCABULARY = 4, 300


def _metadata(top_k: list[int], top_p: list[float], allowed: torch.Tensor | None = None) -> SamplingMetadata:
    return SamplingMetadata(
        temperature=torch.tensor([1.0, 0.7, 2.0, 1.0]),
        all_greedy=False,
        all_random=True,
        top_p=torch.tensor(top_p),
        top_k=torch.tensor(top_k),
        generators={},
        max_num_logprobs=0,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(ROWS),
        presence_penalties=torch.zeros(ROWS),
        repetition_penalties=torch.ones(ROWS),
        output_token_ids=[[] for _ in range(ROWS)],
        allowed_token_ids_mask=allowed,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def _sets(noted, noted_by_row, patterns: dict[int, list[bytes]]) -> list[list[int] | None]:
    """Read the engine's numbers back; None: any token."""
    found = []
    for row in noted_by_row:
        words = noted.by_row[row].tolist()
        if words[:1] == [support.NEW]:
            body = np.array(words[2:], dtype="<i4").tobytes()
            patterns.setdefault(row, []).append(body[: words[1]])
            words = [support.SEEN, len(patterns[row]) - 1]
        found.append(list(entries_of(patterns[row][words[1]], VOCABULARY)) if words else None)
    return found


def test_the_sets_are_what_vllms_sampler_leaves_finite():
    # An engine of ours compiles nothing on the CPU either.
    with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        torch.manual_seed(3)
        logits = torch.randn(ROWS, VOCABULARY) * 3
        allowed = torch.zeros(ROWS, VOCABULARY, dtype=torch.bool)
        allowed[3, 17:] = True  # vLLM's mask is of what is not allowed
        metadata = _metadata([VOCABULARY, 5, VOCABULARY, VOCABULARY], [0.8, 1.0, 1.0, 1.0], allowed)
        output = Sampler("processed_logprobs")(logits.clone(), metadata)
        sampler: Any = Sampler("processed_logprobs")
        _, left = sampler.sample(sampler.apply_logits_processors(logits.clone(), metadata, False), metadata)
    noted_by_row = {row: Noted() for row in range(ROWS)}
    sets = _sets(note_rows(left, noted_by_row), noted_by_row, {})
    nucleus = logits[0].softmax(-1).sort(descending=True)
    within = int((nucleus.values.cumsum(-1) - nucleus.values < 0.8).sum())
    assert sets[0] == sorted(nucleus.indices[:within].tolist())
    assert sets[1] == sorted(logits[1].topk(5).indices.tolist())
    assert sets[2] is None
    assert sets[3] == list(range(17))
    for row, found in enumerate(sets):
        assert found is None or int(output.sampled_token_ids[row, 0]) in found
        entries = list(range(VOCABULARY)) if found is None else found
        assert torch.isfinite(left[row]).nonzero()[:, 0].tolist() == entries


def test_a_set_that_came_before_is_named_by_its_number():
    noted, left = Noted(), np.zeros(VOCABULARY, dtype=bool)
    left[:9] = True
    one = np.packbits(left, bitorder="little")
    other = np.packbits(~left, bitorder="little")
    words = [noted.note(bits, count, VOCABULARY).tolist() for bits, count in ((one, 9), (other, 291), (one, 9))]
    assert words[0][0] == words[1][0] == support.NEW
    assert words[2] == [support.SEEN, 0]
    assert noted.note(other, 291, VOCABULARY).tolist() == [support.SEEN, 1]


def test_sets_beyond_the_limit_are_left_out_and_not_kept(monkeypatch):
    monkeypatch.setattr(support, "LIMIT_BYTES", 30)
    noted, words = Noted(), []
    for entry in range(20):
        left = np.zeros(VOCABULARY, dtype=bool)
        left[entry : entry + 3] = True
        words.append(noted.note(np.packbits(left, bitorder="little"), 3, VOCABULARY).tolist()[0])
    assert words == [support.NEW] * 2 + [support.LEFT_OUT] * 18


@pytest.mark.parametrize("vocabulary", [8, 300, 301])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.98, 0.9999])
def test_forms_are_those_of_the_trainers_side(vocabulary, share):
    left = np.random.default_rng(5).random(vocabulary) < share
    left[3] = True
    entries = np.flatnonzero(left).tolist()
    bits = np.packbits(left, bitorder="little")
    found = packed_pattern(bits, len(entries), vocabulary)
    assert found == pattern_of(entries, vocabulary)
    assert list(entries_of(found, vocabulary)) == entries


def test_the_other_runners_sets_take_the_same_forms(monkeypatch):
    """vLLM's own tensors, on the CPU; its kernel that fills them needs a GPU."""
    from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors
    from vllm.v1.worker.gpu.sample.sampler import Sampler as SamplerV2

    monkeypatch.setattr(SamplerV2, "__init__", SamplerV2.__init__)
    monkeypatch.setattr(SamplingMaskTensors, "tolists", SamplingMaskTensors.tolists)
    support._use_for_runner_v2()
    left = np.zeros((3, VOCABULARY), dtype=bool)
    left[0, [5, 250]] = True
    left[1] = True  # and of the last row nothing is left
    tensors = SamplingMaskTensors(
        torch.zeros(3, 4, dtype=torch.int32),
        torch.from_numpy(np.packbits(left, axis=1, bitorder="little")),
        torch.tensor([2, VOCABULARY, 0], dtype=torch.int32),
        VOCABULARY,
    )
    lists = tensors.tolists()
    assert lists.slice_request(0, 1).token_ids.tolist() == support.new_set(pattern_of([5, 250], VOCABULARY)).tolist()
    assert lists.slice_request(1, 1).token_ids.tolist() == []
    assert lists.slice_request(2, 1).token_ids.tolist()[:2] == [support.NEW, 1], "by which a dead end is known"


@pytest.mark.parametrize(
    "asked",
    [
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.1},
        {"min_tokens": 3},
        {"bad_words": ["no"]},
        {"allowed_token_ids": [1, 2]},
        {"structured_outputs": StructuredOutputsParams(regex="a+")},
    ],
)
def test_what_takes_entries_away_is_known(asked):
    assert restricts(SamplingParams(**asked))


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.3, "seed": 1, "stop": ["x"], "ignore_eos": True, "stop_token_ids": [7]},
        {"logit_bias": {3: 1.0}, "presence_penalty": 1.0, "repetition_penalty": 1.2},
        {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 0.2},  # vLLM drops them where it is greedy
    ],
)
def test_what_takes_none_away_is_not_looked_at(asked):
    assert not restricts(SamplingParams(**asked))


def test_rows_in_the_middle_of_their_prompt_are_not_noted():
    def request(**asked):
        return SimpleNamespace(sampling_params=SamplingParams(**asked))

    runner = SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=["free", "prompt", "narrow"]),
        requests={"free": request(), "prompt": request(top_k=3), "narrow": request(top_k=3)},
        discard_request_mask=SimpleNamespace(np=np.array([False, True, False])),
    )
    first = support._restricted_rows(runner)
    assert list(first) == [2]
    assert support._restricted_rows(runner)[2] is first[2]
