"""A small world in some hundred passages, made from a seed and searched with SQLite's FTS5: nothing is downloaded.

The names are invented, so that no model knows an answer: it has to search. Half of the world is for training and half
is held out; the two are one corpus and share no person, town or country.
"""

import random
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass
from functools import cache
from threading import Lock

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
_one_at_a_time = Lock()


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
    """Return the passages that BM25 ranks highest, the best first; none that has no word of the query."""
    wanted = " OR ".join(f'"{word}"' for word in sorted(set(_WORD.findall(query.lower()))))
    if not wanted:
        return []
    ranked = "SELECT text FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?"
    with _one_at_a_time:
        return [text for (text,) in _index().execute(ranked, (wanted, count))]


@cache
def _index() -> sqlite3.Connection:
    # A title is searched with its passage: who asks for a town means the town, and not those who live there.
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text)")
    index.executemany("INSERT INTO passages VALUES (?, ?)", passages().items())
    return index
