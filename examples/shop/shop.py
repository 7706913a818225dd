"""A small shop as an environment: find a thing among others, put it into the cart, open the cart, order.

The page is made here and runs in the browser; what was ordered decides the reward. Held-out visits ask for things that
are on no training page.
"""

import json
import random
from collections.abc import Callable
from typing import Any

COLORS = {"train": ("red", "blue", "green", "white", "brown"), "held-out": ("black", "pink", "gold", "grey", "violet")}
THINGS = {
    "train": ("lamp", "chair", "kettle", "mirror", "basket", "teapot", "pillow", "carpet"),
    "held-out": ("clock", "table", "bottle", "candle", "blanket", "plate", "ladder", "shelf"),
}
ON_A_PAGE = 3
PAGE = """<!doctype html><meta charset="utf-8"><title>Shop</title>
<style>
  body { font: 16px system-ui, sans-serif; margin: 2rem; max-width: 40rem }
  header, li { display: flex; gap: 1rem; align-items: center; justify-content: space-between }
  ul { padding: 0 } li { border-bottom: 1px solid #ddd; padding: .5rem 0; list-style: none }
  button { font: inherit; padding: .3rem .8rem }
</style>
<main></main>
<script>
  const things = THINGS, cart = [];
  window.ordered = null;
  const button = (text, act) => { const made = document.createElement("button");
    made.textContent = text; made.onclick = () => { act(); draw(); }; return made; };
  let open = false;
  function draw() {
    const main = document.querySelector("main");
    main.replaceChildren();
    if (window.ordered) { main.append("Thank you."); return; }
    if (open) {
      main.append(`In the cart: ${cart.join(", ") || "nothing"}`, document.createElement("br"));
      main.append(button("Order", () => window.ordered = [...cart]), button("Back", () => open = false));
      return;
    }
    for (const thing of things) {
      const line = document.createElement("li");
      line.append(button(`Add ${thing}`, () => cart.push(thing)));
      main.append(line);
    }
    main.append(button(`Cart: ${cart.length}`, () => open = true));
  }
  draw();
</script>
"""


class Shop:
    """The environment: ``web:examples/shop/shop.py``."""

    def open(self, task: Any) -> tuple[str, str]:
        draw: random.Random = task.random()
        kinds = [f"{color} {thing}" for color in COLORS[task.split] for thing in THINGS[task.split]]
        things = draw.sample(kinds, ON_A_PAGE)
        self.wanted = draw.choice(things)
        return f'Order one "{self.wanted}".', PAGE.replace("THINGS", json.dumps(things))

    def reward(self, run: Callable[[str], Any]) -> float | None:
        ordered = run("return window.ordered")
        return None if ordered is None else float(ordered == [self.wanted])
