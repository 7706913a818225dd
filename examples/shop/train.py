"""Train an agent to order things in a web shop: held-out visits, training steps, the same held-out visits again.

    lightning-trainer environments install web
    lightning-trainer serve --config examples/shop/lightning.toml
    python examples/shop/train.py --steps 20

Chromium and its driver have to be on the PATH. The shop is shop.py: three clicks in the right order, and held-out
visits ask for things that no training page has.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "web"))

from web_training import main  # pyright: ignore[reportMissingImports]

ENVIRONMENT = f"web:{os.path.relpath(Path(__file__).with_name('shop.py'))}?screenshots=true"


def visit(wanted: str, *others: str) -> list[dict[str, str]]:
    """Return a visit as messages; what is wanted stands between the others."""
    things = [*others[:1], wanted, *others[1:]]
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


AGENT = {
    "examples": [*visit("purple hat", "yellow bowl", "orange brush"), *visit("silver spoon")],
    "max_tokens": 24,
    "max_turns": 4,
}
"""A model of this size has to be shown a visit; nothing of it is in the shop. Three clicks, and one to put right."""

if __name__ == "__main__":
    main(__doc__, "shop", ENVIRONMENT, AGENT)
