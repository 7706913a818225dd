"""What a model needs to be trained and served, from its config.json alone, and the settings that fit given hardware.

These are estimates: ``docs/scale.md`` says how far they are from measurements, and on which hardware.
"""
