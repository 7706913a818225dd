"""A scripted customer orders things from the training pages, and its clicks become demonstrations.

    python examples/shop/customer.py examples/shop/demonstrations.jsonl

Each line is one click: what the agent is shown (`prompt`) and what the customer said (`completion`), in TRL's form,
which a stage reads as its `data`. The file exists already: this rewrites it. No browser is needed, because a visit's
pages are known.
"""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shop import COLORS, ON_A_PAGE, THINGS

INSTRUCTIONS = "Do what the first line says: name an element of the page, and click on its number."
VISITS = 32


def visit(things: Sequence[str], wanted: str) -> list[dict[str, Any]]:
    """Return a visit as messages: by turns the page, and what a good customer says."""
    adds = [f'button "Add {thing}" [{number}]' for number, thing in enumerate(things, 1)]
    carts = [f'button "Cart: {count}" [{len(things) + 1}]' for count in range(2)]
    pages = [
        ([*adds, carts[0]], adds[things.index(wanted)]),
        ([*adds, carts[1]], carts[1]),
        ([f"In the cart: {wanted}", 'button "Order" [1]', 'button "Back" [2]'], 'button "Order" [1]'),
    ]
    messages = []
    for page, clicked in pages:
        text = "\n".join([f'Order one "{wanted}".', "", *page])
        number = clicked[clicked.rindex("[") + 1 : -1]
        messages += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": f"{clicked}: click({number})"},
        ]
    return messages


EXAMPLES = visit(("yellow bowl", "purple hat", "orange brush"), "purple hat")
"""Shown to the model before every page; none of these things is in the shop."""


def demonstrations() -> list[dict[str, Any]]:
    """Return the customer's clicks, each with what the agent is shown for its page."""
    draw = random.Random("customer")
    kinds = [f"{color} {thing}" for color in COLORS["train"] for thing in THINGS["train"]]
    shown = [{"role": "system", "content": INSTRUCTIONS}, *EXAMPLES]
    rows = []
    for _ in range(VISITS):
        things = draw.sample(kinds, ON_A_PAGE)
        said = visit(things, draw.choice(things))
        rows += [{"prompt": [*shown, said[at]], "completion": [said[at + 1]]} for at in range(0, len(said), 2)]
    return rows


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/shop/customer.py FILE")
    rows = demonstrations()
    Path(sys.argv[1]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} demonstrations in {sys.argv[1]}")
