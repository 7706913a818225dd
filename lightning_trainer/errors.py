"""Every error that lightning-trainer raises on purpose: one root, each class also a standard error.

A message says what was wrong, the value, and what to do; the command line prints it without a traceback.
"""

import errno
from collections.abc import Mapping

FULL = (errno.ENOSPC, errno.EDQUOT)
"""``errno`` of an OSError: no room is left on the disk, or none for this user; there may be some later."""
CANNOT_WRITE = (
    *FULL,
    *(errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
)
"""``errno`` of an OSError: a folder is full, read-only, or someone else's; a file is where a folder should be, or the
reverse."""


class LightningError(Exception):
    """Root of all errors of this package."""


class ConfigError(LightningError, ValueError):
    """The configuration cannot be used as it is."""


class AddressTakenError(ConfigError):
    """Another process listens at the daemon's address; it may soon stop."""


class MissingExtraError(LightningError, ImportError):
    """A feature needs packages that are not installed; the message names the install command."""


class ModelError(LightningError, ValueError):
    """A model cannot be found, read or used."""


class DownloadError(ModelError):
    """A model could not be fetched; a later try may find the network up, or room on the disk."""


class MalformedTelemetryError(LightningError, ValueError):
    """A body or span that cannot be read as what it claims to be."""


class DatasetError(LightningError, ValueError):
    """A dataset cannot be written or read in the form that was asked for."""


class MalformedCallError(DatasetError):
    """A record of a model call that lacks something, or contradicts another one."""


class StoreError(LightningError, RuntimeError):
    """The store refused or could not complete an operation; nothing of it was written."""


class UnusableStoreError(StoreError):
    """The store is of a kind that this version cannot use, and stays so until someone changes something."""


class DamagedStoreError(StoreError):
    """A part of the store's file cannot be read; the rest can."""


class TakenOutError(StoreError):
    """Something that a step was about to train was dropped or forgotten while the step was built."""


class TurnLostError(StoreError):
    """Another daemon trains the policy; nothing was written."""


class LedgerImbalanceError(LightningError, ValueError):
    """The tokens that went in are not the tokens accounted for (promise 1)."""


class CreditAssignmentError(LightningError, ValueError):
    """A credit scheme cannot be applied to these transitions."""


class TrainingError(LightningError, RuntimeError):
    """An update, a checkpoint or the worker behind it failed."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written, or is damaged; the trainer is as it was."""


class TrainerDiedError(TrainingError):
    """A trainer's process ended without giving a reason, or was not started in time: another one may survive."""


class TrainerBrokenError(TrainingError):
    """A trainer failed with an unexpected error: the state of its process cannot be relied on."""


class PublicationError(LightningError, RuntimeError):
    """Weights could not be handed over to the engine; the previous version stays live."""


class SettingsChangedError(LightningError, RuntimeError):
    """Recorded steps, repeated with changed settings, gave a version other weights than it has; or a recorded batch
    would be trained by another algorithm than the one that it was made for."""


class EvaluationError(LightningError, RuntimeError):
    """A held-out evaluation gave no score."""


class NotThereError(LightningError):
    """The daemon answered that it does not have what it was asked for; the message is the daemon's sentence."""


class NothingToJudgeError(StoreError):
    """No recorded attempt of those names, or of that time, can be judged."""


class JudgeError(LightningError, RuntimeError):
    """A judge gave no verdict; the reward is missing, and the message says why."""


class UnknownVersionError(LightningError, ValueError):
    """A name is not the name of a version."""


class ExportError(LightningError, ValueError):
    """A version's weights cannot be written where they were asked for."""


class RollbackError(LightningError, ValueError):
    """A policy cannot go back to that version; everything stays as it was."""


class DropError(LightningError, ValueError):
    """Something cannot be taken out of what will be trained; everything stays as it was."""


class PromptError(LightningError, ValueError):
    """A version of a prompt cannot be kept as it is; nothing of it was written."""


class ProposalError(LightningError, RuntimeError):
    """A proposer made no version of a prompt; the message says why.

    ``spent`` is what its model was asked without result: ``calls``, ``input_tokens``, ``output_tokens``; empty if
    nothing was asked.
    """

    def __init__(self, message: str, *, spent: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.spent: Mapping[str, int] = spent or {}


class ForgetError(LightningError, ValueError):
    """There is nothing of that name to forget; everything stays as it was."""


class EngineError(LightningError, RuntimeError):
    """The inference engine is unavailable, did not start, or died."""
