"""A small world in some hundred passages, made from a seed, and BM25 to search it: nothing is downloaded.

The names are invented, so that no model knows an answer: it has to search. Half of the world is for training and half
is held out; the two are one corpus and share no person, town or country.
"""

import math
import random
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

import lightning_instrumentation as lt

_SEED = 20_261_124
_FIRST = ("Ana", "Ben", "Cleo", "Dov", "Edda", "Finn", "Gita", "Hugo", "Ines", "Jory", "Kira", "Leif", "Mona", "Nils")
_STARTS = ("Bar", "Cal", "Dor", "El", "Far", "Gan", "Hol", "Jas", "Kel", "Lam", "Mor", "Nar", "Or", "Pel", "Ras", "Sol")
_ENDS = {
    "surname": ("berg", "ding", "ler", "mann", "sen", "ton"),
    "town": ("burg", "ford", "field", "haven", "port", "wick"),
    "country": ("avia", "esia", "istan", "land", "onia", "ovia"),
    "river": ("ane", "era", "ine", "una", "ura", "yra"),
}
_JOBS = ("baker", "doctor", "farmer", "painter", "pilot", "singer", "tailor", "teacher")
_TOWNS, _PEOPLE = 3, 4
"""In a country, and in a town."""
_WORD = re.compile(r"[a-z]+")
_STEEPNESS, _LENGTH_SHARE = 1.2, 0.75
"""BM25's k1 and b, as Robertson and Zaragoza (2009) have them."""


@dataclass(frozen=True)
class Person:
    name: str
    job: str
    town: str
    river: str
    country: str
    held_out: bool

    @property
    def passage(self) -> str:
        return f"{self.name} is a {self.job} and lives in {self.town}."


@cache
def people() -> tuple[Person, ...]:
    """Return everybody; the same ones in every process."""
    rng = random.Random(_SEED)
    names = {kind: [start + end for start in _STARTS for end in ends] for kind, ends in _ENDS.items()}
    for some in names.values():
        rng.shuffle(some)
    found = []
    for number in range(20):
        country = names["country"].pop()
        for _ in range(_TOWNS):
            town, river = names["town"].pop(), names["river"].pop()
            for surname in rng.sample(names["surname"], _PEOPLE):
                name = f"{rng.choice(_FIRST)} {surname}"
                found.append(Person(name, rng.choice(_JOBS), town, river, country, held_out=number % 2 == 1))
    # Two of one name would make a question with two answers.
    counted = Counter(person.name for person in found)
    return tuple(person for person in found if counted[person.name] == 1)


@cache
def passages() -> dict[str, str]:
    """Return the corpus by title: a passage for everybody, and one for every town."""
    towns = {one.town: f"{one.town} is a town in {one.country}, on the river {one.river}." for one in people()}
    return {one.name: one.passage for one in people()} | towns


@lt.tool
def search(query: str, count: int = 1) -> list[str]:
    """Return the passages that BM25 likes best, the best first; none that has no word of the query."""
    lengths, frequencies, documents = _index()
    mean = sum(lengths) / len(lengths)
    scores: dict[int, float] = {}
    for word in set(_WORD.findall(query.lower())):
        holding = documents.get(word, ())
        rarity = math.log(1 + (len(lengths) - len(holding) + 0.5) / (len(holding) + 0.5))
        for place in holding:
            often = frequencies[place][word]
            damped = often + _STEEPNESS * (1 - _LENGTH_SHARE + _LENGTH_SHARE * lengths[place] / mean)
            scores[place] = scores.get(place, 0.0) + rarity * often * (_STEEPNESS + 1) / damped
    best = sorted(scores, key=lambda place: (-scores[place], place))
    texts = list(passages().values())
    return [texts[place] for place in best[:count]]


@cache
def _index() -> tuple[list[int], list[Counter[str]], dict[str, list[int]]]:
    """Return the words in each passage, how often each of them is in it, and the passages of a word."""
    # A title is searched with its passage: who asks for a town means the town, and not those who live there.
    frequencies = [Counter(_WORD.findall(f"{title} {text}".lower())) for title, text in passages().items()]
    documents: dict[str, list[int]] = {}
    for place, words in enumerate(frequencies):
        for word in words:
            documents.setdefault(word, []).append(place)
    return [words.total() for words in frequencies], frequencies, documents
