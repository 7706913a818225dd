"""verl's own DataProto, written and read by verl, and used by verl's own loss."""

from dataclasses import replace
from typing import Any

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import DatasetError
from lightning_trainer.types import Sample, Segment

pytestmark = pytest.mark.verl

SAMPLES = (
    Sample("s1", "math", "solver", "g", "a", (1, 2, 3, 4, 5), (0, 0, 1, 0, 1), (0.0, 0.0, -0.5, 0.0, -1.0),
           (Segment(2, 3, "c/0", 3, 1.0, "a"), Segment(4, 5, "d/0", 3, 1.0, "a"))),
    Sample("s2", "math", "solver", "g", "b", (7, 8, 9, 6), (0, 0, 0, 1), (0.0, 0.0, 0.0, -0.25),
           (Segment(3, 4, "e/0", 3, 0.0, "b"),)),
)  # fmt: skip
ADVANTAGES = {"s1": (0.0, 0.0, 0.7, 0.0, 0.7), "s2": (0.0, 0.0, 0.0, -0.7)}


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    from verl import DataProto

    from lightning_trainer.dataset.formats.dataproto import to_dataproto, write_dataproto

    path = tmp_path_factory.mktemp("verl") / "batch.pkl"
    write_dataproto(to_dataproto(SAMPLES, ADVANTAGES, pad_token_id=99), path)
    return DataProto.load_from_disk(path)


def test_the_tensors_are_padded_as_verl_pads(batch) -> None:
    tensors = batch.batch
    assert tensors["prompts"].tolist() == [[99, 1, 2], [7, 8, 9]]
    assert tensors["responses"].tolist() == [[3, 4, 5], [6, 99, 99]]
    assert tensors["input_ids"].tolist() == [[99, 1, 2, 3, 4, 5], [7, 8, 9, 6, 99, 99]]
    assert tensors["attention_mask"].tolist() == [[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]
    assert tensors["position_ids"].tolist() == [[0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 3, 3]]
    assert tensors["response_mask"].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert tensors["rollout_log_probs"].tolist() == [[-0.5, 0.0, -1.0], [-0.25, 0.0, 0.0]]
    assert tensors["advantages"].tolist() == [pytest.approx([0.7, 0.0, 0.7]), pytest.approx([-0.7, 0.0, 0.0])]
    assert batch.non_tensor_batch["uid"].tolist() == ["g", "g"]
    assert batch.meta_info["temperature"] == 1.0


def test_every_sample_can_be_read_back_from_its_row(batch) -> None:
    for index, sample in enumerate(SAMPLES):
        row = batch[index].batch
        seen = row["attention_mask"].bool()
        assert tuple(row["input_ids"][seen].tolist()) == sample.token_ids
        trained = row["responses"][row["response_mask"].bool()].tolist()
        assert trained == [token for token, bit in zip(sample.token_ids, sample.loss_mask, strict=True) if bit]


def test_verl_splits_the_batch_and_its_loss_takes_it(batch) -> None:
    import torch
    from verl import DataProto
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig

    tensors = DataProto.concat(batch.chunk(2)).batch
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    policy_loss: Any = get_policy_loss_fn("vanilla")
    loss, _ = policy_loss(
        old_log_prob=tensors["old_log_probs"],
        log_prob=tensors["rollout_log_probs"].clone(),
        advantages=tensors["advantages"],
        response_mask=tensors["response_mask"],
        loss_agg_mode="token-mean",
        config=config,
    )
    # The ratio is 1 everywhere, so the loss is minus the mean advantage of the three trained tokens.
    assert torch.isclose(loss, torch.tensor(-(0.7 + 0.7 - 0.7) / 3))


def test_temperatures_that_differ_are_refused() -> None:
    from dataclasses import replace

    from lightning_trainer.dataset.formats.dataproto import to_dataproto

    with pytest.raises(DatasetError, match=r"temperatures 0\.5, 1\.0"):
        to_dataproto((SAMPLES[0], replace(SAMPLES[1], temperature=0.5)), ADVANTAGES)
    with pytest.raises(DatasetError, match="no sample"):
        to_dataproto((), {})


def test_advantages_are_those_of_the_policys_own_algorithm() -> None:
    """Whitened over the batch, where a token counts half of the next: 0.5 and 1 of the first row, 0 of the second."""
    from lightning_trainer.dataset.forms import advantages_of

    algorithm = {"advantage": "reinforce_plus_plus", "gamma": 0.5}
    samples = [
        replace(one, segments=tuple(replace(run, row_id=one.attempt_id) for run in one.segments)) for one in SAMPLES
    ]
    policy = PolicyConfig.model_validate({"name": "math", "agents": ["solver"], "model": "m", "algorithm": algorithm})
    found = advantages_of(samples, policy)
    assert found["s1"] == pytest.approx((0.0, 0.0, 0.0, 0.0, 1.0), abs=1e-5)
    assert found["s2"] == pytest.approx((0.0, 0.0, 0.0, -1.0), abs=1e-5)
