"""``python -m lightning_trainer`` is ``lightning-trainer``."""

from lightning_trainer.cli import main

main()
