"""Scores of ids from a running engine: vLLM's ``prompt_logprobs`` in text completions.

They come from the unscaled logits, that is, at temperature 1. Source: vLLM, OpenAI-compatible server, extra parameters.
"""

from collections.abc import Sequence
from typing import Any

import httpx

from lightning_trainer.errors import EngineError
from lightning_trainer.retokenize.grading import UnscorableError


class EngineScorer:
    """A client that lets an engine score one call at a time; use it as a context manager."""

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        """Connect to an engine.

        Args:
            base_url: the engine's, including ``/v1``.
            model: its name at the engine.
        """
        self.model = model
        key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=base_url, headers={**key, **(headers or {})}, timeout=600)

    def __enter__(self) -> "EngineScorer":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Return ``log p(token | before it)``, nats, for every token but the first.

        Raises:
            UnscorableError: the engine refuses these ids (400).
            EngineError: there is no engine, it does not serve the model, or it does not score prompts.
        """
        body = {"model": self.model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        try:
            answer = self._client.post("completions", json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"the engine at {self._client.base_url} cannot be asked for scores: {error}") from error
        if answer.status_code == 400:
            raise UnscorableError(f"the engine does not score the ids: {answer.text[:300]}")
        if answer.status_code != 200:
            raise EngineError(
                f"the engine at {self._client.base_url} does not score ids: {answer.status_code} {answer.text[:300]}"
            )
        return tuple(_scores(answer.json(), token_ids, str(self._client.base_url)))


def _scores(answer: Any, token_ids: Sequence[int], where: str) -> list[float]:
    try:
        positions = answer["choices"][0]["prompt_logprobs"]
        return [
            float(position[str(token_id)]["logprob"])
            for token_id, position in zip(token_ids[1:], positions[1:], strict=True)
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(
            f"the engine at {where} answers without prompt_logprobs; name a vLLM server with --engine"
        ) from error
