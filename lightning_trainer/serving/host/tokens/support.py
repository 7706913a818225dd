"""In the engine's process: what each token was drawn from, recorded next to the sampler.

vLLM has a path for it (``ModelRunnerOutput.sampling_masks`` to ``CompletionOutput.sampling_mask``), which is used here
from end to end. Only its entrance is ours, because vLLM's own, ``--return-sampling-mask``, needs model runner V2, which
does not exist on CPUs, refuses every request without a top_k, and spells out each set as a list of ids, which for free
text inside a JSON string is the whole vocabulary at each token. Here the sets take the forms of
``lightning_trainer.sampling``, and a set that the response has had before is named by its number.

The path carries lists of integers, one per token:

    []                      any token of the vocabulary
    [-1, n]                 the n-th set that this response had
    [-2, bytes, words ...]  a new set, its bytes as little-endian words
    [-3]                    left out: the sets of the response take more than LIMIT_BYTES
    [id, id ...]            these entries, as vLLM itself writes it

The token was drawn from the entries that are still finite after all processing of the logits: a grammar, allowed and
bad words, min_tokens, min-p, top-k, and top-p set the entries that they take away to minus infinity. Requests that use
none of these are not examined.

vLLM 0.31.0 (``InputProcessor``, ``VllmConfig._verify_sampling_replay_config``). Upstream: we know of no issue.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_trainer.sampling import ALL_BUT, BITS, ONLY

LIMIT_BYTES = 1 << 24
"""Limit on the distinct sets of one response: 2,700 tokens that each leave half of SmolLM2's vocabulary."""
SEEN, NEW, LEFT_OUT = -1, -2, -3
_NOTED = "_lightning_support"


def restricts(parameters: Any) -> bool:
    """Whether vLLM's ``SamplingParams`` can take entries of the vocabulary away."""
    return bool(
        parameters.structured_outputs is not None
        or parameters.top_p < 1.0
        or parameters.top_k > 0
        or parameters.min_p > 0.0
        or parameters.allowed_token_ids
        or parameters.bad_words
        or parameters.min_tokens > 0
    )


def packed_pattern(bits: np.ndarray, count: int, vocabulary: int) -> bytes:
    """Return ``sampling.pattern_of`` of a set that is given as one bit per entry, little-endian."""
    inside, outside = 4 * count, 4 * (vocabulary - count)
    if inside <= min(outside, len(bits)):
        return bytes([ONLY]) + _set(bits, vocabulary).tobytes()
    if outside <= len(bits):
        return bytes([ALL_BUT]) + _set(~bits, vocabulary).tobytes()
    return bytes([BITS]) + bits.tobytes()


def _set(bits: np.ndarray, vocabulary: int) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(bits, count=vocabulary, bitorder="little")).astype("<i4")


@dataclass(slots=True)
class Noted:
    """The sets that one response has had so far; only their hashes, since the sets themselves are passed on."""

    numbers: dict[bytes, int] = field(default_factory=dict)
    size: int = 0

    def note(self, bits: np.ndarray, count: int, vocabulary: int) -> np.ndarray:
        """Return the words that stand for the next token's set.

        Args:
            bits: the set, one bit per entry of the vocabulary, little-endian.
            count: number of entries in it.
        """
        if count == vocabulary:
            return _words()
        digest = hashlib.blake2b(bits.tobytes(), digest_size=16).digest()
        if (number := self.numbers.get(digest)) is not None:
            return _words(SEEN, number)
        pattern = packed_pattern(bits, count, vocabulary)
        self.size += len(pattern)
        if self.size > LIMIT_BYTES:
            return _words(LEFT_OUT)
        self.numbers[digest] = len(self.numbers)
        return new_set(pattern)


def new_set(pattern: bytes) -> np.ndarray:
    """Return the words of a new set: ``NEW``, its length in bytes, and its pattern, padded to whole words."""
    words = np.frombuffer(pattern + bytes(-len(pattern) % 4), dtype="<i4")
    return np.concatenate((_words(NEW, len(pattern)), words))


def _words(*values: int) -> np.ndarray:
    return np.array(values, dtype="<i4")


@dataclass(frozen=True, slots=True)
class NotedRows:
    """Replaces vLLM's ``SamplingMaskLists`` of a batch; rows that nothing restricts have no entry."""

    by_row: Mapping[int, np.ndarray]

    def slice_request(self, row: int, tokens: int) -> Any:
        """Return what a row was drawn from, in vLLM's form; None if nothing restricts the row, or if the number of its
        sampled tokens is not 1."""
        from vllm.v1.outputs import SamplingMaskLists

        noted = self.by_row.get(row)
        return SamplingMaskLists(noted) if noted is not None and tokens == 1 else None


def note_rows(logits: Any, noted_by_row: Mapping[int, Noted]) -> NotedRows:
    """Note the rows of a batch.

    Args:
        logits: a torch tensor ``[B, V]`` of logits or log-probabilities; minus infinity marks what was taken away.
        noted_by_row: the rows that are sampled and restricted, with their responses' earlier sets.
    """
    rows, vocabulary = list(noted_by_row), logits.shape[-1]
    left_RV = (logits[rows] > float("-inf")).cpu().numpy()
    bits_RB = np.packbits(left_RV, axis=1, bitorder="little")
    counts_R = left_RV.sum(axis=1).tolist()
    return NotedRows(
        {
            row: noted.note(bits, count, vocabulary)
            for (row, noted), bits, count in zip(noted_by_row.items(), bits_RB, counts_R, strict=True)
        }
    )


def use_for_vllm() -> None:
    """Feed vLLM's path with the entries that the sampler leaves, for either of vLLM's model runners."""
    from vllm.platforms import current_platform
    from vllm.v1.core.sched.scheduler import Scheduler

    if hasattr(Scheduler, _NOTED):
        return
    setattr(Scheduler, _NOTED, True)
    initialize = Scheduler.__init__

    def deliver(self, *args, **kwargs) -> None:
        initialize(self, *args, **kwargs)
        # vLLM's own switch is not used: it would refuse greedy requests and those without a top_k.
        self.return_sampling_mask = True

    Scheduler.__init__ = deliver
    _use_for_runner_v1()
    if not current_platform.is_cpu():
        _use_for_runner_v2()


def _use_for_runner_v1() -> None:
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    sample_logits, sample, sample_tokens = Sampler.sample, GPUModelRunner._sample, GPUModelRunner.sample_tokens

    def keep_logits(self, logits, *args, **kwargs):
        sampled, processed = sample_logits(self, logits, *args, **kwargs)
        # A greedy batch of which no request asked for log-probabilities has none, and its logits are unchanged.
        self.left = logits if processed is None else processed
        return sampled, processed

    def note(self, logits, spec_decode_metadata):
        output = sample(self, logits, spec_decode_metadata)
        left, self.sampler.left = getattr(self.sampler, "left", None), None
        self.noted_rows = None
        if left is not None and spec_decode_metadata is None and (wanted := _restricted_rows(self)):
            self.noted_rows = note_rows(left, wanted)
        return output

    def deliver(self, *args, **kwargs):
        output = sample_tokens(self, *args, **kwargs)
        rows, self.noted_rows = getattr(self, "noted_rows", None), None
        if rows is not None:
            getattr(output, "_model_runner_output", output).sampling_masks = rows
        return output

    Sampler.sample = keep_logits
    GPUModelRunner._sample = note
    GPUModelRunner.sample_tokens = deliver  # pyright: ignore[reportAttributeAccessIssue]


def _restricted_rows(runner: Any) -> dict[int, Noted]:
    """Return the restricted rows, except those still in their prompt, whose sampled tokens are thrown away."""
    batch = runner.input_batch
    unfinished = runner.discard_request_mask.np
    rows: dict[int, Noted] = {}
    for row, request_id in enumerate(batch.req_ids):
        state = vars(runner.requests[request_id])
        if _NOTED not in state:
            parameters = state["sampling_params"]
            state[_NOTED] = Noted() if parameters is not None and restricts(parameters) else None
        if state[_NOTED] is not None and not unfinished[row]:
            rows[row] = state[_NOTED]
    return rows


def _use_for_runner_v2() -> None:
    """Have this runner record the sets itself; only their form is changed, to at most one bit per entry."""
    from vllm.v1.outputs import SamplingMaskLists
    from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    initialize = Sampler.__init__

    def keep(self, *args, **kwargs) -> None:
        initialize(self, *args, **{**kwargs, "return_sampling_mask": True})

    def packed(self: SamplingMaskTensors) -> SamplingMaskLists:
        rows = packed_rows(self.packed_mask.cpu().numpy(), self.counts.tolist(), self.vocab_size)
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return SamplingMaskLists(np.concatenate(rows), offsets)

    Sampler.__init__ = keep
    SamplingMaskTensors.tolists = packed


def packed_rows(bits_RB: np.ndarray, counts: list[int], vocabulary: int) -> list[np.ndarray]:
    """Return the words that stand for each row's set.

    A row has count 0 if a grammar leaves nothing of it, or if it sampled nothing; the latter is never asked for.
    """
    return [
        _words() if count == vocabulary else new_set(packed_pattern(bits, count, vocabulary))
        for bits, count in zip(bits_RB, counts, strict=True)
    ]
