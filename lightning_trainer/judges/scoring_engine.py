"""A policy's own engine, used by a judge: logprobs of exact ids, and the version that computed them.

Uses the engine's ``/lightning/score``: directly in the daemon, and from the command line through the daemon's route of
the same name and format.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from lightning_trainer.config import Config
from lightning_trainer.errors import EngineError, JudgeError, MissingExtraError
from lightning_trainer.models.resolve import found_model, model_cache

SCORE_PATH = "/lightning/score"

Post = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""Sends a JSON body to ``SCORE_PATH``; returns status and body.

Raises:
    EngineError: the engine does not answer.
"""


@dataclass(frozen=True, slots=True)
class Scores:
    """One version's scores of some sequences."""

    version: int
    logprobs: tuple[tuple[float, ...], ...]
    """``log p(t_i | t_<i)`` for ``i >= 1`` of each sequence, in nats."""


class ScoringEngine:
    """The engine of one policy, and its tokenizer."""

    def __init__(self, policy: str, model: str, post: Post, longest: int | None = None) -> None:
        """
        Args:
            model: as in the configuration.
            longest: tokens that a sequence may have; None if it is not known.
        """
        self.policy = policy
        self.longest = longest
        self._model = model
        self._post = post

    @cached_property
    def tokenizer(self) -> Any:
        """Return the ``tokenizers.Tokenizer`` of the policy's model; reads a file on first use.

        Raises:
            JudgeError: the model is not on this machine, or has no ``tokenizer.json``.
            MissingExtraError: the package is not installed.
        """
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                'tokenizing a reference answer needs tokenizers; run: pip install "lightning-trainer[train]"'
            ) from error
        folder = found_model(self._model, model_cache())
        if folder is None or not (folder / "tokenizer.json").is_file():
            raise JudgeError(
                f"the model {self._model} of policy {self.policy} has no tokenizer.json on this machine, so its "
                "reference answers cannot be tokenized; start the daemon here once, or save the model with a fast "
                "tokenizer"
            )
        return Tokenizer.from_file(str(folder / "tokenizer.json"))

    async def score(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        """Return the logprob of each token given those before it, all from one version.

        Raises:
            JudgeError: the engine is not running, or refuses the sequences.
        """
        try:
            status, body = await self._post(
                orjson.dumps({"policy": self.policy, "token_ids": [list(ids) for ids in token_ids]})
            )
            document = orjson.loads(body)
        except EngineError as error:
            raise JudgeError(f"the engine of policy {self.policy} does not score: {error}") from error
        except orjson.JSONDecodeError as error:
            raise JudgeError(f"what the engine of policy {self.policy} answered is not JSON") from error
        try:
            if status == 200:
                return Scores(document["version"], tuple(map(tuple, document["logprobs"])))
            said = document["error"]["message"]
        except (KeyError, TypeError):
            said = "its answer has another form than expected"
        raise JudgeError(f"the engine of policy {self.policy} does not score (HTTP {status}): {said}")


EngineOf = Callable[[str | None], ScoringEngine]
"""Returns the engine of a policy by name; without a name, of the only policy."""


def engines_of(config: Config, post_of: Callable[[str], Post]) -> EngineOf:
    """Return a function that finds the engines of a configuration's policies.

    Args:
        post_of: returns the transport to the engine of a policy, by name; called when it is first needed.
    """

    def engine_of(name: str | None) -> ScoringEngine:
        policy = config.named_policy(name)

        async def post(body: bytes) -> tuple[int, bytes]:
            return await post_of(policy.name)(body)

        # The longest sequence that the engine takes with room for one more token.
        return ScoringEngine(policy.name, policy.model, post, config.engine_of(policy).max_model_len - 1)

    return engine_of
