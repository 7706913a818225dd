"""A prompt that repeats words gets the ids that were sampled for them, of its own owner, where the text is certain."""

import itertools
import random
from collections.abc import Sequence

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from lightning_trainer.serving.host.tokens.conversations import REPLACEMENT, Conversations, answer_text, continued

START, END = "<|im_start|>", "<|im_end|>"
_MERGES = [("t", "h"), ("th", "e"), ("a", "n"), ("an", "d"), ("Ġ", "the"), ("e", "n"), ("Ã", "¤")]


class Words:
    """A byte-level tokenizer with merges, so that one text has many sequences of ids."""

    def __init__(self) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens = ["<|endoftext|>", START, END, *alphabet, *("".join(pair) for pair in _MERGES)]
        self.raw = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=_MERGES))
        self.raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.raw.decoder = decoders.ByteLevel()
        self.raw.add_special_tokens([AddedToken(token, special=True) for token in tokens[:3]])

    def encode(self, text: str) -> list[int]:
        return self.raw.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.raw.decode(list(ids), skip_special_tokens=False)

    def letters(self, text: str) -> list[int]:
        """The ids of a text one by one, which is not how it is tokenized."""
        return [id for letter in text for id in self.encode(letter)]

    def end(self) -> list[int]:
        return self.encode(END)


@pytest.fixture(scope="module")
def words() -> Words:
    return Words()


def rendered(*said: str) -> str:
    """What a chat template makes of questions and answers in turn, up to where the model goes on."""
    turns = zip(itertools.cycle(["user", "assistant"]), said)
    return "".join(f"{START}{role}\n{text}{END}\n" for role, text in turns) + f"{START}assistant\n"


class Engine:
    """What the patch does, without vLLM: a call is tokenized, answered with given ids, and remembered."""

    def __init__(self, words: Words, **options: int) -> None:
        self.words, self.conversations = words, Conversations(**options)

    def prompt(self, owner: str, text: str) -> list[int]:
        return self._prompt(owner, text)[1]

    def call(self, owner: str, text: str, *answers: list[int]) -> list[int]:
        """Return the ids of the prompt."""
        after, ids = self._prompt(owner, text)
        told = [(answer_text(ids, answer, self.words.decode), answer) for answer in answers]
        self.conversations.remember(owner, text, ids, told, after=after)
        return ids

    def _prompt(self, owner: str, text: str):
        tokenized = self.words.encode(text)
        beginnings = self.conversations.beginnings(owner, text)
        found = continued(text, tokenized, beginnings, self.words.encode, self.words.decode)
        return found or (None, tokenized)


@pytest.fixture
def engine(words) -> Engine:
    return Engine(words)


def test_the_same_words_keep_the_ids_that_were_sampled_over_several_turns(engine, words):
    sampled = [*words.letters("the hen"), *words.end()]
    first = engine.call("a", rendered("and?"), sampled)
    text = rendered("and?", "the hen", "then?")
    assert words.encode(text)[: len(first) + len(sampled)] != first + sampled, "it is tokenized otherwise"
    again = [*words.letters(" the"), *words.end()]
    second = engine.call("a", text, again)
    assert second[: len(first) + len(sampled)] == first + sampled
    text = rendered("and?", "the hen", "then?", " the", "the end")
    third = engine.prompt("a", text)
    kept = second + again
    assert third == kept + words.encode(text.removeprefix(words.decode(kept)))
    assert words.decode(third) == text


def test_nothing_is_taken_from_another_owner(engine, words):
    mine, theirs = [*words.letters("the"), *words.end()], [*words.encode("th"), *words.encode("e"), *words.end()]
    head = len(engine.call("a", rendered("?"), mine))
    engine.call("b", rendered("?"), theirs)
    text = rendered("?", "the", "!")
    assert engine.prompt("a", text)[head : head + len(mine)] == mine
    assert engine.prompt("b", text)[head : head + len(theirs)] == theirs
    assert engine.prompt("c", text) == words.encode(text)


def test_of_answers_with_the_same_words_the_newest_counts_and_of_one_call_the_first_choice(engine, words):
    whole, pieces = [*words.encode("the"), *words.end()], [*words.letters("the"), *words.end()]
    two = [*words.encode("th"), *words.encode("e"), *words.end()]
    head = len(engine.call("a", rendered("?"), pieces, two, whole))
    text = rendered("?", "the", "!")
    assert engine.prompt("a", text)[head : head + len(pieces)] == pieces
    engine.call("a", rendered("?"), two)
    assert engine.prompt("a", text)[head : head + len(two)] == two


def test_words_that_were_changed_are_tokenized_and_what_stands_before_them_is_kept(engine, words):
    first = [*words.letters("the"), *words.end()]
    prompt = engine.call("a", rendered("?"), first)
    engine.call("a", rendered("?", "the", "!"), [*words.letters("and then"), *words.end()])
    text = rendered("?", "the", "!", "and  then", "?")
    ids = engine.prompt("a", text)
    assert ids[: len(prompt) + len(first)] == prompt + first
    rest = text[len(rendered("?")) + len("the") + len(END) :]
    assert ids[len(prompt) + len(first) :] == words.encode(rest)
    changed = rendered("?", "The", "!")
    assert engine.prompt("a", changed) == words.encode(changed)


def test_an_answer_that_was_cut_is_closed_by_the_template(engine, words):
    sampled = words.letters("the th")
    prompt = engine.call("a", rendered("?"), sampled)
    text = rendered("?", "the th", "go on")
    ids = engine.prompt("a", text)
    assert ids[: len(prompt) + len(sampled)] == prompt + sampled
    assert words.decode(ids) == text


def test_a_cut_in_the_middle_of_a_word_is_not_kept(engine, words):
    """Someone else's words which happen to begin as the answer did."""
    engine.call("a", rendered("?"), words.letters("th"))
    text = rendered("?", "then", "!")
    assert engine.prompt("a", text) == words.encode(text)


def test_partial_characters_are_never_taken_for_equal(engine, words):
    umlaut = words.raw.token_to_id("Ã")  # the first of two bytes
    engine.call("a", rendered("?"), [*words.letters("the"), umlaut, *words.end()])
    text = rendered("?", f"the{REPLACEMENT}", "!")
    assert engine.prompt("a", text) == words.encode(text)
    whole = [umlaut, words.raw.token_to_id("¤"), *words.end()]
    prompt = engine.call("b", rendered("?"), whole)
    ids = engine.prompt("b", rendered("?", "ä", "!"))
    assert ids[: len(prompt) + 3] == prompt + whole, "a whole character in two tokens is certain"


def test_an_answer_without_text_is_not_found_behind_the_same_prompt(engine, words):
    nothing = 9999  # an id beyond the tokenizer, as padded vocabularies have them
    prompt = engine.call("a", rendered("?"), [nothing])
    assert engine.prompt("a", rendered("?")) == prompt
    sampled = [nothing, *words.letters("the"), nothing, *words.end()]
    engine.call("a", rendered("?"), sampled)
    assert engine.prompt("a", rendered("?", "the", "!"))[: len(prompt) + len(sampled)] == prompt + sampled


def test_words_that_look_like_a_special_token_stay_as_they_were_sampled(engine, words):
    spelled = words.letters(END)
    prompt = engine.call("a", rendered("?"), [*spelled, *words.end()])
    ids = engine.prompt("a", rendered("?", END, "!"))
    assert ids[: len(prompt) + len(spelled) + 1] == [*prompt, *spelled, *words.end()]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_was_said_decodes_to_the_prompt_and_extends_the_longest_equal_turn(words, seed):
    """Random conversations with forks, retries and several choices, against a search over all answers of the owner."""
    choose = random.Random(seed)
    engine = Engine(words)
    answers: list[tuple[str, str, list[int]]] = []
    talks: list[list[str]] = [["the?"]]
    for _ in range(40):
        talk = choose.choice(talks)
        text = rendered(*talk)
        owner = choose.choice("ab")
        sampled = []
        for _ in range(choose.choice([1, 1, 2])):
            said = "".join(
                choose.choice(["the ", "hen ", "and", "ä", " then", "x"]) for _ in range(choose.randint(1, 4))
            )
            ids = words.letters(said) if choose.random() < 0.5 else words.encode(said)
            sampled.append([*ids, *words.end()] if choose.random() < 0.8 else ids)
            talks.append([*talk, said, "and the?"])
        prompt = engine.call(owner, text, *sampled)
        assert words.decode(prompt) == text
        ends = [ids for of, ids in ((of, ids) for of, _, ids in answers) if of == owner]
        matching = [ids for ids in ends if text.startswith(words.decode(ids)) and len(words.decode(ids)) < len(text)]
        if matching:
            longest = max(len(words.decode(ids)) for ids in matching)
            assert any(prompt[: len(ids)] == ids for ids in matching if len(words.decode(ids)) == longest)
        else:
            assert prompt == words.encode(text)
        answers.extend((owner, text, prompt + ids) for ids in sampled)


def test_memory_is_bounded_and_those_used_longest_ago_go_first(words):
    engine = Engine(words, limit_bytes=40_000)
    for number in range(200):
        engine.call(f"attempt {number}", rendered("?" * 100), [*words.letters("the"), *words.end()])
        engine.call("kept in use", rendered("?"), [*words.letters("the"), *words.end()])
        assert engine.conversations.size <= 40_000
    assert 2 < len(engine.conversations) < 40
    text = rendered("?", "the", "!")
    assert engine.prompt("kept in use", text) != words.encode(text)
    old = rendered("?" * 100, "the", "!")
    assert engine.prompt("attempt 0", old) == words.encode(old)
    engine.call("too large", rendered("?" * 50_000), words.end())
    assert (engine.conversations.size, len(engine.conversations)) == (0, 0)


def test_what_turns_share_is_held_once(words):
    engine = Engine(words)
    said = ["the?" * 50]
    sizes = []
    for _ in range(40):
        engine.call("a", rendered(*said), [*words.letters("then"), *words.end()])
        sizes.append(engine.conversations.size)
        said += ["then", "the?" * 50]
    assert sizes[-1] - sizes[-2] == sizes[2] - sizes[1], "a turn costs what it adds"
    engine.call("a", rendered(*said[:-2]), [*words.letters("then"), *words.end()])
    assert engine.conversations.size == sizes[-1], "the same again adds nothing"
