import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.thresholds import REJECTIONS


def test_a_loss_reads_settings_that_there_are():
    for name, loss in POLICY_LOSSES.items():
        assert set(loss.reads) <= set(AlgorithmConfig.model_fields), name


@pytest.mark.verl
def test_the_contract_is_of_the_rejections_and_losses_that_verl_has_and_of_ours():
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.trainer.ppo.rollout_corr_helper import SUPPORTED_ROLLOUT_RS_OPTIONS

    from lightning_trainer.training.update.losses import over_the_batch  # which registers ours

    theirs = {str(name) for name in POLICY_LOSS_REGISTRY if not str(name).startswith("lightning_")}
    assert theirs - set(POLICY_LOSSES) == set()
    assert [name for name in POLICY_LOSSES if over_the_batch(name) not in POLICY_LOSS_REGISTRY] == []
    assert REJECTIONS == SUPPORTED_ROLLOUT_RS_OPTIONS
