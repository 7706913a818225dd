"""Train an agent to order things in a web shop: held-out visits, imitation and then RL, the same held-out visits again.

    lightning-trainer environments install web
    lightning-trainer serve --config examples/shop/lightning.toml
    python examples/shop/train.py --steps 20

Chromium and its driver must be on the PATH. The shop is shop.py: three clicks in the right order, and held-out
visits ask for things that no training page has. The demonstrations are those of customer.py. To see what the agent saw:
--environment "web:examples/shop/shop.py?screenshots=true"
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "web"))

from customer import EXAMPLES, INSTRUCTIONS
from web_training import main  # pyright: ignore[reportMissingImports]

ENVIRONMENT = f"web:{os.path.relpath(Path(__file__).with_name('shop.py'))}"
AGENT = {"instructions": INSTRUCTIONS, "examples": EXAMPLES, "max_tokens": 24, "max_turns": 4, "history": 0}
"""Three clicks, and one to correct a mistake. A page says everything, so the model is not shown what it did before."""

if __name__ == "__main__":
    main(__doc__, "shop", ENVIRONMENT, AGENT)
