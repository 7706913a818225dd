"""An exit status tells a supervisor whether another start may help."""

import pytest

from lightning_trainer import errors
from lightning_trainer.cli.daemon.serve import CONFIG, TEMPORARY, exit_status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ConfigError("an unknown key"), CONFIG),
        (errors.ModelError("there is no such model"), CONFIG),
        (errors.MissingExtraError("pip install"), CONFIG),
        (errors.DatasetError("not a file"), CONFIG),
        (errors.UnusableStoreError("a newer lightning-trainer wrote it"), CONFIG),
        (errors.AddressTakenError("the port is taken"), TEMPORARY),
        (errors.DownloadError("no network"), TEMPORARY),
        (errors.StoreError("another daemon has the state folder"), TEMPORARY),
        (errors.EngineError("it was killed"), TEMPORARY),
        (errors.TrainingError("Ray did not start"), TEMPORARY),
    ],
)
def test_what_may_pass_is_told_from_what_a_user_has_to_mend(error, status):
    assert exit_status(error) == status
