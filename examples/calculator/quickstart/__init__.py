"""``lightning-trainer quickstart``: watching the agent of this example learn."""
