"""Train the search agent from an expert's demonstrations: held-out questions, imitation and then RL, the same again.

    lightning-trainer serve --config examples/distil/lightning.toml
    python examples/distil/train.py --steps 24

Agent and tasks are those of examples/search, the demonstrations those of expert.py. The steps of imitation are the
daemon's own; --steps counts them too.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "search"))

from search_training import main  # pyright: ignore[reportMissingImports]

if __name__ == "__main__":
    main(__doc__, "distil", steps=24)
