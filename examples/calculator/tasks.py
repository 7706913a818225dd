"""Word problems with one right number, in endless supply; a held-out task is new in wording and in numbers.

Invariant: training and held-out tasks share no wording, no name, no thing counted, and no number. Every whole number
belongs to exactly one side (`is_heldout_number`), so a policy that remembers answers or sentences gains nothing.
A task is scored on the last number of the agent's final answer, so nothing but the answer itself earns the reward.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

HELDOUT_SEED = 20_261_121
"""Seed of the held-out tasks: `heldout_tasks(n)` always returns the same first ``n``."""

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Family:
    """Problems that one arithmetic expression solves, told in several ways."""

    name: str
    expression: str
    """The solution over the quantities ``a``, ``b`` and ``c``."""
    ranges: dict[str, tuple[int, int]]
    """Smallest and largest value of each quantity, both included."""
    train: tuple[str, ...]
    """Wordings that training may use."""
    heldout: tuple[str, ...]
    """Wordings that only held-out tasks use."""

    def solve(self, quantities: dict[str, int]) -> Fraction:
        """Return the exact answer of one problem."""
        a, b, c = (Fraction(quantities.get(name, 0)) for name in "abc")
        solutions = {
            "a + b": lambda: a + b,
            "a - b": lambda: a - b,
            "a * b": lambda: a * b,
            "a * b + c": lambda: a * b + c,
            "a + b - c": lambda: a + b - c,
        }
        return solutions[self.expression]()


@dataclass(frozen=True, slots=True)
class Task:
    """One question with its exact answer."""

    id: str
    question: str
    answer: Fraction
    family: str
    wording: str
    """The template that the question was told with."""
    numbers: tuple[int, ...]
    """The quantities in the question."""


_BIG, _MIDDLE, _SMALL = (21, 98), (11, 60), (3, 12)

FAMILIES: tuple[Family, ...] = (
    Family(
        "add",
        "a + b",
        {"a": _BIG, "b": _BIG},
        train=(
            "{who} has {a} {things} and buys {b} more. How many {things} does {who} have now?",
            "There are {a} {things} in one box and {b} in another. How many {things} are there altogether?",
            "{who} read {a} pages in May and {b} pages in June. How many pages did {who} read in total?",
            "A shop sold {a} {things} in the morning and {b} in the afternoon. How many {things} did it sell?",
            "A school has {a} girls and {b} boys. How many children go to the school?",
            "A bus with {a} people stops and {b} more get on. How many people are on the bus?",
            "{who} walked {a} steps and then another {b} steps. How many steps is that?",
            "On Friday {a} guests came and on Saturday {b}. How many guests came in all?",
            "{who} found {a} {things} and was given {b} by a friend. How many {things} does that make?",
            "A tower is {a} metres high and the flag on it adds {b} metres. How high is it with the flag?",
            "A recipe needs {a} grams of sugar and {b} grams of flour. How many grams is that together?",
            "{who} is {a} years old and an aunt is {b} years older. How old is the aunt?",
            "A zoo has {a} monkeys and buys {b} parrots. How many animals is that?",
            "{who} spent {a} minutes on homework and {b} minutes on chores. How many minutes is that altogether?",
        ),
        heldout=(
            "{who} picked {a} {things} before lunch and {b} after lunch. How many {things} were picked that day?",
            "A train with {a} passengers takes on {b} more. How many passengers are aboard?",
            "A pond has {a} ducks and {b} geese. How many birds swim on the pond?",
            "{who} paid {a} dollars for a coat and {b} dollars for shoes. What did {who} pay in total?",
        ),
    ),
    Family(
        "subtract",
        "a - b",
        {"a": (51, 98), "b": (11, 49)},
        train=(
            "{who} had {a} {things} and gave {b} away. How many {things} are left?",
            "A jar holds {a} {things}. {who} takes out {b}. How many {things} remain in the jar?",
            "{who} has {a} dollars and spends {b} dollars. How much money does {who} have left?",
            "Of the {a} seats in a cinema, {b} are taken. How many seats are free?",
            "A farmer has {a} sheep and sells {b} of them. How many sheep does the farmer still have?",
            "There were {a} {things} on a table and {b} fell off. How many {things} are still on the table?",
            "A rope is {a} metres long and {b} metres are cut off. How many metres are left?",
            "{who} made {a} {things} and {b} of them broke. How many {things} did not break?",
            "A bus carries {a} people and {b} get off. How many people stay on the bus?",
            "Of {a} lamps in a street, {b} do not work. How many lamps work?",
            "A barrel has {a} litres of oil and {b} litres are used. How many litres are in it now?",
            "A group of {a} hikers starts and {b} turn back. How many hikers go on?",
            "{who} needs {a} {things} and has {b} already. How many {things} are missing?",
            "A film lasts {a} minutes and {b} minutes have passed. How many minutes are left?",
            "Of {a} eggs in a basket {b} are cracked. How many eggs are whole?",
            "A road is {a} miles long and {who} has driven {b} miles. How many miles are left to drive?",
        ),
        heldout=(
            "{who} baked {a} {things} and {b} of them were eaten. How many {things} were not eaten?",
            "A tank holds {a} litres of water and {b} litres leak out. How many litres stay in the tank?",
            "A class has {a} pupils and {b} are ill today. How many pupils are in class today?",
            "{who} owned {a} {things} but lost {b}. How many {things} does {who} own now?",
        ),
    ),
    Family(
        "multiply",
        "a * b",
        {"a": _MIDDLE, "b": _SMALL},
        train=(
            "A hall has {a} rows with {b} chairs each. How many chairs are there?",
            "{who} buys {a} boxes with {b} {things} in each box. How many {things} is that?",
            "A worker earns {a} dollars an hour. How many dollars does the worker earn in {b} hours?",
            "{who} runs {a} laps a week. How many laps is that in {b} weeks?",
            "One ticket costs {a} dollars. How much do {b} tickets cost?",
            "A machine makes {a} {things} a day. How many {things} does it make in {b} days?",
            "There are {a} houses with {b} windows each. How many windows is that?",
            "{who} fills {b} jars with {a} {things} in every jar. How many {things} are in the jars?",
            "A spider web has {a} threads of {b} knots. How many knots is that?",
            "{who} drives {a} miles an hour for {b} hours. How many miles is that?",
            "A field gives {a} sacks of corn a year. How many sacks does it give in {b} years?",
            "Each of {b} friends brings {a} {things}. How many {things} do they bring?",
        ),
        heldout=(
            "A crate holds {a} {things}. How many {things} do {b} crates hold?",
            "{who} types {a} words a minute. How many words does {who} type in {b} minutes?",
            "A hotel has {b} floors with {a} rooms on each floor. How many rooms does it have?",
            "One bottle costs {a} cents. What do {b} bottles cost?",
        ),
    ),
    Family(
        "multiply then add",
        "a * b + c",
        {"a": _MIDDLE, "b": _SMALL, "c": _BIG},
        train=(
            "{who} reads {a} pages a day for {b} days and then {c} more pages. How many pages is that?",
            "A ticket costs {a} dollars. {who} buys {b} tickets and pays a fee of {c} dollars. What is the total cost?",
            "{who} has {a} bags with {b} {things} each and {c} loose {things}. How many {things} are there in all?",
            "A theatre has {a} rows of {b} seats and {c} seats on the balcony. How many seats does it have?",
            "A plumber takes {a} dollars an hour and {c} dollars for the trip. What does a job of {b} hours cost?",
            "{who} earns {a} dollars a week for {b} weeks and finds {c} dollars. How many dollars is that?",
            "A wall has {a} rows of {b} bricks, and {c} bricks lie beside it. How many bricks are there?",
            "{who} packs {a} boxes of {b} {things} and has {c} {things} over. How many {things} are there?",
            "A school has {a} classes of {b} children and {c} teachers. How many people are at the school?",
            "{who} swims {a} lengths a day for {b} days and {c} lengths on Sunday. How many lengths is that?",
            "A taxi takes {a} dollars an hour and {c} dollars for the bags. What does a ride of {b} hours cost?",
            "{who} plants {a} rows of {b} roses and {c} tulips. How many flowers is that?",
            "A shelf holds {a} rows of {b} cups and {c} plates. How many pieces is that?",
            "{who} gets {a} points a game for {b} games and a bonus of {c} points. How many points is that?",
            "A phone costs {a} dollars a month for {b} months plus {c} dollars at the start. What is the whole price?",
            "{who} sells {a} {things} a day for {b} days and then {c} more. How many {things} were sold?",
        ),
        heldout=(
            "{who} saves {a} dollars a month for {b} months and gets {c} dollars as a gift. How much does {who} have?",
            "A garden has {a} beds with {b} plants each and {c} plants in pots. How many plants is that?",
            "{who} buys {a} trays with {b} {things} on each and then {c} single {things}. How many {things} is that?",
            "A van costs {a} dollars a day and {c} dollars for fuel. What does it cost for {b} days?",
        ),
    ),
    Family(
        "add then subtract",
        "a + b - c",
        {"a": (31, 98), "b": _MIDDLE, "c": (5, 30)},
        train=(
            "{who} earns {a} dollars on Monday and {b} on Tuesday, then spends {c}. How much money is left?",
            "{who} has {a} {things}, gets {b} more and loses {c}. How many {things} does {who} have now?",
            "A shop has {a} {things}, receives {b} and sells {c}. How many {things} are in the shop now?",
            "There are {a} birds in a tree. Then {b} birds come and {c} fly away. How many birds are there?",
            "A bus has {a} people on it. Then {b} get on and {c} get off. How many people are on the bus?",
            "{who} had {a} {things}, bought {b} and gave {c} to a friend. How many {things} are left?",
            "A tank has {a} litres in it. {who} adds {b} litres and uses {c} litres. How many litres are in it?",
            "A team has {a} points, wins {b} and loses {c}. How many points does the team have?",
            "A library owns {a} maps, buys {b} and throws {c} away. How many maps does it own now?",
            "{who} starts with {a} dollars, earns {b} dollars and pays {c} dollars. How many dollars are left?",
            "A lake has {a} fish. {who} puts in {b} fish and catches {c}. How many fish are in the lake?",
            "A choir has {a} singers. This year {b} join and {c} stop. How many singers does it have?",
        ),
        heldout=(
            "A ship has {a} people on it. In a port {b} get on and {c} get off. How many people are on the ship?",
            "{who} collects {a} {things}, finds {b} more and breaks {c}. How many {things} are whole?",
            "A hotel has {a} guests. Today {b} arrive and {c} leave. How many guests does it have now?",
            "{who} wrote {a} lines, then {b} more, and deleted {c}. How many lines are there?",
        ),
    ),
)

_TRAIN_NAMES = ("Tom", "Ana", "Mia", "Leo", "Sam", "Ivy", "Max", "Zoe", "Ben", "Eva")
_HELDOUT_NAMES = ("Paul", "Nora", "Omar", "Lucy", "Hugo", "Rosa")
_TRAIN_THINGS = ("apples", "stickers", "marbles", "coins", "cards", "eggs", "books", "shells")
_HELDOUT_THINGS = ("oranges", "stamps", "buttons", "cookies", "candles", "stones")


def is_heldout_number(number: int) -> bool:
    """Whether a quantity may appear in held-out tasks (and then never in training)."""
    return number % 7 in (2, 5)


def train_tasks(seed: int, n: int) -> list[Task]:
    """Return ``n`` training tasks; the same seed gives the same tasks."""
    return _tasks(f"train-{seed}", random.Random(f"train {seed}"), n, heldout=False)


def heldout_tasks(n: int) -> list[Task]:
    """Return the first ``n`` held-out tasks: every family in turn, always the same ones."""
    return _tasks("heldout", random.Random(HELDOUT_SEED), n, heldout=True)


def score(answer_text: str, task: Task) -> float:
    """Return 1.0 when the last number of the final answer is exactly the task's answer, else 0.0.

    An answer that still holds a tool call is not an answer: the agent stopped before it used the tool's result.
    """
    if "tool_call" in answer_text:
        return 0.0
    numbers = _NUMBER.findall(answer_text)
    if not numbers:
        return 0.0
    last = numbers[-1].replace(",", "")
    return 1.0 if len(last) <= 20 and Fraction(last) == task.answer else 0.0


def _tasks(prefix: str, rng: random.Random, n: int, *, heldout: bool) -> list[Task]:
    families = _families_in_turn(rng)
    return [_task(f"{prefix}-{index}", next(families), rng, heldout=heldout) for index in range(n)]


def _families_in_turn(rng: random.Random) -> Iterator[Family]:
    """Yield families forever, each once before any repeats, so that a small batch is balanced."""
    while True:
        yield from rng.sample(FAMILIES, len(FAMILIES))


def _quantities(family: Family, rng: random.Random, *, heldout: bool) -> dict[str, int]:
    return {
        name: rng.choice([n for n in range(low, high + 1) if is_heldout_number(n) == heldout])
        for name, (low, high) in family.ranges.items()
    }


def _task(task_id: str, family: Family, rng: random.Random, *, heldout: bool) -> Task:
    wording = rng.choice(family.heldout if heldout else family.train)
    quantities = _quantities(family, rng, heldout=heldout)
    while len({*quantities.values(), family.solve(quantities)}) <= len(quantities):
        quantities = _quantities(
            family, rng, heldout=heldout
        )  # no number of the question is the answer, or occurs twice
    question = wording.format(
        who=rng.choice(_HELDOUT_NAMES if heldout else _TRAIN_NAMES),
        things=rng.choice(_HELDOUT_THINGS if heldout else _TRAIN_THINGS),
        **quantities,
    )
    return Task(task_id, question, family.solve(quantities), family.name, wording, tuple(quantities.values()))
