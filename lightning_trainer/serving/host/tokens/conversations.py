"""The texts of conversations with their ids: a turn that repeats a text gets the ids that were sampled for it.

A chat template renders the whole history to text for each turn, and a tokenizer may split the same words into other ids
than the model sampled. Invariants: ids are given only to the owner that they were sampled for, only for a prompt that
begins with exactly the text that they stand for, and never for a text that decoding left uncertain (partial
characters).

Each owner has a tree, whose nodes are alternately prompts and answers, each with its text and ids; the path from the
root to a node is one conversation as the engine saw it. What turns share is stored once.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""The character that decoding writes for bytes that form no whole one; different ids may then have the same text."""
_LIMIT_BYTES = 256 * 2**20
_NODE_BYTES = 400
_TRIES = 4
_DECODED_BEFORE = 8
"""Tokens of the prompt that are decoded with its answer: some tokenizers write a text's first token differently."""

Encode = Callable[[str], list[int]]
Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True, eq=False)
class _Node:
    text: str
    ids: array
    parent: "_Node | None"
    sampled: bool
    children: list["_Node"] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the approximate size in bytes."""
        return _NODE_BYTES + sys.getsizeof(self.text) + len(self.ids) * self.ids.itemsize

    def child(self, text: str, ids: array, sampled: bool) -> "_Node | None":
        return next(
            (one for one in self.children if one.text == text and one.sampled == sampled and one.ids == ids), None
        )


@dataclass(slots=True, eq=False)
class _Conversation:
    root: _Node = field(default_factory=lambda: _Node("", array("I"), None, False))
    size: int = 0


@dataclass(frozen=True, slots=True)
class Remembered:
    """The beginning of a text, up to the end of an answer."""

    characters: int
    _node: _Node
    _conversation: _Conversation

    @property
    def ids(self) -> list[int]:
        """Return the ids that the engine saw and sampled for these characters."""
        path, node = [], self._node
        while node is not None:
            path.append(node)
            node = node.parent
        return [token for one in reversed(path) for token in one.ids]


class Conversations:
    """Recent complete answers by owner; the owners not used for longest are forgotten first. One event loop only.

    Args:
        limit_bytes: approximate limit on the memory of all of them together.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._of: OrderedDict[str, _Conversation] = OrderedDict()
        self.size = 0
        """Approximate size in bytes."""

    def __len__(self) -> int:
        return len(self._of)

    def beginnings(self, owner: str, text: str) -> list[Remembered]:
        """Return the beginnings of ``text`` that end with an answer: longest first, among equals the newest first."""
        conversation = self._of.get(owner)
        if conversation is None:
            return []
        self._of.move_to_end(owner)
        found: list[Remembered] = []
        open_nodes = [(conversation.root, 0)]
        while open_nodes:
            node, at = open_nodes.pop()
            for child in node.children:
                if text.startswith(child.text, at):
                    end = at + len(child.text)
                    open_nodes.append((child, end))
                    if child.sampled:
                        found.append(Remembered(end, child, conversation))
        # A prompt's newer answers come after its older ones, hence the reversal; sorting keeps the order of equals.
        found.reverse()
        return sorted(found, key=lambda one: one.characters, reverse=True)

    def remember(
        self,
        owner: str,
        prompt: str,
        prompt_ids: Sequence[int],
        answers: Sequence[tuple[str, Sequence[int]]],
        *,
        after: Remembered | None = None,
    ) -> None:
        """Remember a call whose answer is complete.

        Args:
            prompt: the whole prompt as text.
            answers: text and ids of each choice; of choices with equal text, the first one is found again.
            after: the remembered beginning of the prompt, if ``prompt_ids`` begin with its ids.
        """
        conversation = self._of.setdefault(owner, _Conversation())
        self._of.move_to_end(owner)
        before = conversation.size
        node = conversation.root
        if after is not None and after._conversation is conversation:
            node, prompt, prompt_ids = after._node, prompt[after.characters :], prompt_ids[len(after.ids) :]
        node = self._add(conversation, node, prompt, prompt_ids, sampled=False)
        for text, ids in reversed(answers):
            # An answer without text would be found when the same prompt is asked again.
            if text and REPLACEMENT not in text:
                self._add(conversation, node, text, ids, sampled=True)
        self.size += conversation.size - before
        while self.size > self._limit_bytes:
            _, forgotten = self._of.popitem(last=False)
            self.size -= forgotten.size

    def _add(
        self, conversation: _Conversation, parent: _Node, text: str, ids: Sequence[int], *, sampled: bool
    ) -> _Node:
        packed = array("I", ids)
        node = parent.child(text, packed, sampled)
        if node is None:
            node = _Node(text, packed, parent, sampled)
            conversation.size += node.size
        else:
            parent.children.remove(node)
        parent.children.append(node)
        return node


def answer_text(prompt_ids: Sequence[int], answer_ids: Sequence[int], decode: Decode) -> str:
    """Return the text that an answer adds to its prompt's; ``REPLACEMENT`` if that cannot be told."""
    before = list(prompt_ids[-_DECODED_BEFORE:])
    head, whole = decode(before), decode([*before, *answer_ids])
    return whole.removeprefix(head) if whole.startswith(head) else REPLACEMENT


def continued(
    text: str, tokenized: Sequence[int], beginnings: Sequence[Remembered], encode: Encode, decode: Decode
) -> tuple[Remembered, list[int]] | None:
    """Return the first beginning whose ids can be kept, and the prompt's ids with them; None if there is none.

    The new ids must certainly stand for the same text. They do if the tokenizer splits the text at the end of the
    beginning by itself, so that the rest has the same ids (there is such a split at a special token, not in the middle
    of a word), and if the new ids decode to the same text as the tokenizer's.

    Args:
        tokenized: the ids of ``text`` as the tokenizer makes them.
        beginnings: beginnings of ``text``, the best first.
        encode: encodes without adding special tokens.
        decode: decodes with special tokens.
    """
    expected = None
    for beginning in beginnings[:_TRIES]:
        rest = encode(text[beginning.characters :]) if beginning.characters < len(text) else []
        if list(tokenized[len(tokenized) - len(rest) :]) != rest:
            continue
        ids = [*beginning.ids, *rest]
        if ids == list(tokenized):
            return beginning, ids
        expected = decode(tokenized) if expected is None else expected
        if decode(ids) == expected:
            return beginning, ids
    return None
