"""Log-probabilities of given tokens, from the engine itself.

The sequences are scored one at a time and without the prefix cache (vLLM does not read it for prompt logprobs), so the
same weights give the same numbers every time. Each costs a pass through the model, so a few long ones are cheaper.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from lightning_trainer.errors import EngineError

_request_numbers = itertools.count()


async def score(engine: Any, token_ids: Sequence[Sequence[int]], adapter: Any = None) -> tuple[tuple[float, ...], ...]:
    """Return ``log p(t_i | t_<i)`` for ``i >= 1`` of each sequence, in nats.

    Args:
        adapter: vLLM's ``LoRARequest``; None: the model itself.

    Raises:
        EngineError: the engine gave no number for a token.
    """
    from vllm import SamplingParams

    parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
    rows = []
    for ids in token_ids:
        output = None
        prompt = {"prompt_token_ids": list(ids)}
        async for part in engine.generate(prompt, parameters, f"score-{next(_request_numbers)}", lora_request=adapter):
            output = part
        if output is None or output.prompt_logprobs is None:
            raise EngineError(f"the engine returned no log-probabilities for a sequence of {len(ids)} tokens")
        rows.append(
            tuple(entry[token].logprob for token, entry in zip(ids[1:], output.prompt_logprobs[1:], strict=True))
        )
    return tuple(rows)


def refusal(token_ids: Sequence[Sequence[int]], *, vocabulary: int, max_model_len: int) -> str | None:
    """Return why the engine cannot score the sequences, or None. An id beyond the vocabulary would kill the engine."""
    for index, ids in enumerate(token_ids):
        if not 2 <= len(ids) < max_model_len:
            return f"sequence {index} has {len(ids)} tokens; 2 to {max_model_len - 1} can be scored"
        if (bad := next((t for t in ids if not isinstance(t, int) or not 0 <= t < vocabulary), None)) is not None:
            return f"sequence {index} holds the token id {bad!r}; the vocabulary has {vocabulary}"
    return None
