"""Everything that imports verl. Importing this package makes "cpu" verl's device, before verl looks for another."""

from lightning_trainer.training.update import platform_cpu

platform_cpu.install()
