"""The token tree of some transitions: which one's exact tokens each of them extends.

A transition's path is its prompt and its response. Its parent is the transition with the longest path that the prompt
starts with, token for token; a prompt that continues nothing in full (re-rendered history, a retry, a new
conversation) is a root. Concatenating a root-to-leaf path gives exactly the tokens that the engine saw at the leaf
(promise 3), because a leaf's own prompt and response are that path.

Paths and prompts are sorted as byte strings, where everything that starts with a path follows it in one run, and a
stack holds the paths that the present string starts with: each path is pushed and popped once.
"""

from array import array
from collections.abc import Sequence

from lightning_trainer.types import Transition

_PATH, _PROMPT = 0, 1


def token_parents(transitions: Sequence[Transition]) -> list[int | None]:
    """Return for each transition the index of the one that it extends, or None.

    Of several with the very same path, the first in ``transitions`` is taken: they cannot be told apart.
    """
    strings: list[tuple[bytes, int, int]] = []
    for index, transition in enumerate(transitions):
        prompt = packed(transition.prompt_ids)
        strings.append((prompt, _PROMPT, index))
        strings.append((prompt + packed(transition.response_ids), _PATH, index))
    strings.sort()
    parents: list[int | None] = [None] * len(transitions)
    open_paths: list[tuple[bytes, int]] = []
    for string, kind, index in strings:
        while open_paths and not string.startswith(open_paths[-1][0]):
            open_paths.pop()
        if kind == _PROMPT:
            parents[index] = open_paths[-1][1] if open_paths else None
        elif not open_paths or open_paths[-1][0] != string:
            open_paths.append((string, index))
    return parents


def packed(token_ids: Sequence[int]) -> bytes:
    """Return token ids as int32 bytes: one string starts with another exactly when the ids do."""
    return array("i", token_ids).tobytes()
