"""Train an agent to click on web pages: held-out pages, training steps, the same held-out pages again.

    lightning-trainer environments install miniwob
    lightning-trainer serve --config examples/web/lightning.toml
    python examples/web/train.py --steps 20

Chromium and its driver have to be on the PATH. Every training step has pages that no other has, and no held-out page
is among them.
"""

from web_training import main

ENVIRONMENT = "miniwob:click-button"
EXAMPLES = [
    {"role": "user", "content": 'Click on the "Buy" button.\n\nbutton "Sell" [4]\ndiv "magna" [5]\nbutton "Buy" [6]'},
    {"role": "assistant", "content": 'button "Buy" [6]: click(6)'},
    {
        "role": "user",
        "content": 'Click on the "later" button.\n\nspan "donec sit:" [4]\ninput_text "" [5]\nbutton "later" [6]\n'
        'button "now" [7]\ndiv "velit ac" [8]',
    },
    {"role": "assistant", "content": 'button "later" [6]: click(6)'},
    {
        "role": "user",
        "content": 'Click on the "Red" button.\n\nbutton "Red" [4]\nbutton "Blue" [5]\ninput_text "" [6]',
    },
    {"role": "assistant", "content": 'button "Red" [4]: click(4)'},
    {
        "role": "user",
        "content": 'Click on the "left" button.\n\nbutton "up" [4]\nbutton "right" [5]\ndiv "quam leo nec" [6]\n'
        'input_text "" [7]\nbutton "left" [8]',
    },
    {"role": "assistant", "content": 'button "left" [8]: click(8)'},
]
"""A model of this size has to be shown that an answer is an action, and finds the number by naming what it clicks on.
None of these buttons is on a page."""
AGENT = {"examples": EXAMPLES, "max_tokens": 20, "max_turns": 1}
"""One click, right or wrong."""

if __name__ == "__main__":
    main(__doc__, "web", ENVIRONMENT, AGENT)
