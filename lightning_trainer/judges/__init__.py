"""Judges: models and programs that give attempts a reward where nothing else scores them.

One kind a file. All of them read stored spans and answer with evaluations, so they work on what was recorded an hour or
a month ago. A judge that fails leaves the reward missing, never zero.
"""
