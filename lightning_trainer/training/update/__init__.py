"""Everything that imports verl. Importing this package makes "cpu" verl's device, before verl looks for another."""

import os

os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")  # verl reads it at import; INFO names every file it saves

from lightning_trainer.training.update import platform_cpu

platform_cpu.install()
