"""What a model needs to be trained and served, from its config.json alone, and the settings that fit on some hardware.

Estimates: ``docs/scale.md`` says how far they are from what was measured, and on what.
"""
