"""The service's users, simulated: what they like, how often they err, and the attackers among them."""

import random
from dataclasses import dataclass

QUESTIONS = (
    "How do I wash a rain jacket?",
    "Which tent is right for two people?",
    "How warm is a down sleeping bag?",
    "Can I return boots that I have worn?",
    "How do I clean a water bottle?",
    "What is a good light for a bicycle?",
    "How long does a gas cartridge last?",
    "Which socks are best for hiking?",
    "How do I store a sleeping bag?",
    "What do I need for a day in the snow?",
    "How do I repair a hole in a tent?",
    "When will my order arrive?",
)
HELD_OUT = (
    "How do I dry a wet tent?",
    "Which backpack is right for a week?",
    "How warm is a fleece jacket?",
    "Can I exchange gloves that are too small?",
    "How do I clean a camping stove?",
    "What is a good knife for the forest?",
    "How long does a climbing rope last?",
    "Which shoes are best for running in the rain?",
    "How do I store skis in summer?",
    "What do I need for a night in the mountains?",
    "How do I repair a zip?",
    "Where is my parcel?",
)
"""Questions that are asked only after the traffic, and never trained on."""
MOST_WORDS = 16
"""Users want to read at most this many words, and a whole sentence."""


def is_liked(answer: str) -> bool:
    """Whether an honest user who does not err likes an answer."""
    words = answer.split()
    return 3 <= len(words) <= MOST_WORDS and answer.rstrip().endswith((".", "!", "?"))


@dataclass(frozen=True)
class User:
    name: str
    attacks: bool
    errs: float
    """How often an honest user clicks the wrong thumb."""

    def thumb(self, answer: str, chance: random.Random) -> str:
        """Return ``up`` or ``down``. An attacker praises answers that nobody likes, and the other way round."""
        liked = is_liked(answer)
        if self.attacks or chance.random() < self.errs:
            liked = not liked
        return "up" if liked else "down"


def users(count: int, *, attackers: float = 0.1, errs: float = 0.1) -> list[User]:
    """Return ``count`` users; ``attackers`` is the share of them that attacks."""
    first_honest = round(attackers * count)
    return [User(f"user-{number}", number < first_honest, errs) for number in range(count)]
