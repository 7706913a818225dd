"""Everything that imports verl. Importing this package makes the chosen device verl's, before verl looks for one."""

import os
import sys

from lightning_trainer.training.on_ray.environ import set_ray_environment

if "ray" not in sys.modules:  # verl imports Ray; in one of Ray's processes all is set
    set_ray_environment()
os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")  # verl reads it at import; INFO names every file it saves

from lightning_trainer.training.device import chosen
from lightning_trainer.training.update.engines.registration import install

install(chosen())
