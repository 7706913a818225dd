"""Everything that imports verl. Importing this package makes the chosen device verl's, before verl looks for one."""

import os

from lightning_trainer.training.on_ray.environment import set_ray_environment

set_ray_environment()  # verl imports Ray
os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")  # verl reads it at import; INFO names every file it saves

from lightning_trainer.training.device import chosen  # noqa: E402
from lightning_trainer.training.update.engines.registration import install  # noqa: E402

install(chosen())
