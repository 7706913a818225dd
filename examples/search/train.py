"""Train an agent to search until it knows: held-out questions, training steps, the same held-out questions again.

    lightning-trainer serve --config examples/search/lightning.toml
    python examples/search/train.py --steps 40

The agent (agent.py) is not changed and does not know.
"""

from search_training import main

if __name__ == "__main__":
    main(__doc__, "search", curriculum=True)
