"""Everything that imports verl. Importing this package makes "cpu" verl's device, before verl looks for another."""

import os

from lightning_trainer.training.on_ray.environment import set_ray_environment

set_ray_environment()  # verl imports Ray
os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")  # verl reads it at import; INFO names every file it saves

from lightning_trainer.training.update.engines import platform_cpu  # noqa: E402

platform_cpu.install()
