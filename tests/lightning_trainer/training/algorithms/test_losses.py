import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.thresholds import REJECTIONS


def test_a_loss_reads_settings_that_there_are():
    for name, loss in POLICY_LOSSES.items():
        assert set(loss.reads) <= set(AlgorithmConfig.model_fields), name


@pytest.mark.verl
def test_the_contract_is_of_the_losses_and_rejections_that_verl_has():
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.trainer.ppo.rollout_corr_helper import SUPPORTED_ROLLOUT_RS_OPTIONS

    import lightning_trainer.training.update  # noqa: F401  # before anything else imports verl

    theirs = {str(name) for name in POLICY_LOSS_REGISTRY if not str(name).startswith("lightning_")}
    assert set(POLICY_LOSSES) == theirs
    assert REJECTIONS == SUPPORTED_ROLLOUT_RS_OPTIONS
