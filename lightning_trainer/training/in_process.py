"""Trainers on a thread of this process: nothing is held twice, but a crash takes the daemon down."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from lightning_trainer.errors import LightningError, TrainerBrokenError, TrainingError
from lightning_trainer.training import device
from lightning_trainer.training.process import TrainerProcess
from lightning_trainer.training.settings import TrainerSettings

if TYPE_CHECKING:
    from lightning_trainer.training.trainers import Trainers


class InProcess(TrainerProcess):
    """A trainer thread; if there are several, only one computes at a time, also while they start.

    transformers replaces functions of torch while it builds a model, verl reads the environment and prints, and random
    numbers come from one state. All of that is global to the process.
    """

    _alone = threading.Lock()

    def __init__(self, settings: Sequence[TrainerSettings], gpus: Sequence[str] = ()) -> None:
        super().__init__(settings)
        self._gpus = gpus
        self._thread: ThreadPoolExecutor | None = None
        self._trainers: Trainers | None = None

    async def _start(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        await self._on_thread(self._load)

    async def _end(self) -> None:
        thread, self._thread, self._trainers = self._thread, None, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)

    async def _asked(self, what: str, policy: str, *arguments: Any) -> Any:
        if self._trainers is None:
            raise TrainingError("the trainer is not running; start it first")
        return await self._on_thread(getattr(self._trainers, what), policy, *arguments)

    def _load(self) -> None:
        self._trainers = build_trainers(self._settings, self._gpus)

    async def _on_thread(self, function: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, function, *arguments)
        except LightningError:
            raise
        except Exception as error:
            raise TrainerBrokenError(f"the trainer failed: {type(error).__name__}: {error}") from error

    def _run(self, function: Any, *arguments: Any) -> Any:
        with self._alone:
            try:
                with device.settings_named_without_memory(self._common):
                    return function(*arguments)
            finally:
                device.release(bool(self._common.training.param_offload))


def build_trainers(settings: Sequence[TrainerSettings], gpus: Sequence[str] = ()) -> "Trainers":
    """Import verl and load what the policies share.

    Args:
        gpus: the only GPUs that this process sees from now on; if empty, those that it already sees.

    Raises:
        MissingExtraError: the packages are not installed.
        TrainingError: there is no such device, or the model or the settings cannot be trained with.
    """
    device.choose(settings[0].training.device, gpus)
    try:
        device.require()
        from lightning_trainer.training.trainers import Trainers
    except ImportError as error:
        from lightning_trainer.errors import MissingExtraError

        raise MissingExtraError(
            f"training needs packages that are not installed ({error}); pip install 'lightning-trainer[train]'"
        ) from error
    return Trainers(settings)
