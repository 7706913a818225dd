"""What a metric says of a batch does not depend on how the batch was cut into micro-batches."""

import pytest

pytestmark = pytest.mark.verl

_OF_THE_POLICY = ("actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/pg_loss")
_OF_THE_CRITIC = ("critic/vf_clipfrac", "critic/vpred_mean", "critic/vf_loss")


def _noisy(samples):
    """Behavior log-probabilities that clip some samples' tokens and not others'."""
    from dataclasses import replace

    return [
        replace(
            sample,
            behavior_logprobs=tuple(
                logprob - 0.4 * (number % 3) * bit
                for logprob, bit in zip(sample.behavior_logprobs, sample.loss_mask, strict=True)
            ),
        )
        for number, sample in enumerate(samples)
    ]


@pytest.mark.parametrize("attention", ["tree", "stock"])
def test_means_over_tokens_are_the_same_in_one_micro_batch_and_in_many(settings, samples_of_shape, attention):
    from lightning_trainer.training.update.learner import Learner

    samples = _noisy(samples_of_shape(1, "masks with holes"))
    found = []
    for budget in (8192, 24):
        learner = Learner(settings(preset="ppo", attention=attention, lr=0.0, max_tokens_per_micro_batch=budget))
        found.append(learner.learn(samples, step=1).metrics)
    one, many = found
    assert 0.0 < one["actor/pg_clipfrac"] < 1.0
    for name in (*_OF_THE_POLICY, *_OF_THE_CRITIC):
        assert many[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name


def test_a_micro_batch_counts_as_many_tokens_as_it_has():
    import torch
    from tensordict import TensorDict
    from verl.utils.metric import Metric

    from lightning_trainer.training.update.metrics import TokenWeighted

    def loss(model_output, data, dp_group=None):
        return torch.zeros(()), {"actor/ppo_kl": Metric("mean", model_output), "critic/vf_clipfrac": model_output}

    weighted, added = TokenWeighted(loss), {"actor/ppo_kl": 0.0, "critic/vf_clipfrac": 0.0}
    for tokens, mean in ((9, 1.0), (1, 0.0)):
        mask = torch.nested.as_nested_tensor([torch.ones(tokens, dtype=torch.long)], layout=torch.jagged)
        data = TensorDict({"response_mask": mask}, batch_size=[1])
        from verl.utils import tensordict_utils as tu

        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=10)
        _, metrics = weighted(mean, data)
        for name in added:
            assert isinstance(metrics[name], Metric)
            added[name] += metrics[name].aggregate()
    assert added == {"actor/ppo_kl": 0.9, "critic/vf_clipfrac": 0.9}
