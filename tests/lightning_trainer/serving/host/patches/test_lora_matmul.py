"""Every row gets its own adapter's product and nothing else, however the rows of a batch are ordered."""

import pytest
import torch

from lightning_trainer.serving.host.patches.lora_matmul import add_adapters, rows_by_adapter

pytestmark = pytest.mark.torch

SLOTS, RANK, INPUT, SLICES = 3, 4, 10, (8, 6)


@pytest.mark.parametrize(
    "slots",
    [[0], [2, 2, 2], [-1, -1], [1, 1, 0, 0, 0], [-1, 2, 2, 1], [0, 1, 0, -1, 1, 2, -1, 0], [1, -1, 1]],
)
def test_rows_are_those_of_a_loop_over_them(slots):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        a = [torch.randn(SLOTS, 1, RANK, INPUT, dtype=torch.float64) for _ in SLICES]
        b = [torch.randn(SLOTS, 1, out, RANK, dtype=torch.float64) for out in SLICES]
        x = torch.randn(len(slots), INPUT, dtype=torch.float64)
        y = torch.randn(len(slots), sum(SLICES), dtype=torch.float64)
    expected = y.clone()
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[row] += 0.5 * torch.cat([b[i][slot, 0] @ (a[i][slot, 0] @ x[row]) for i in range(len(SLICES))])
    add_adapters(y, x, a, b, 0.5, rows_by_adapter(torch.tensor(slots)))
    torch.testing.assert_close(y, expected)


def test_rows_without_an_adapter_keep_every_bit():
    y = torch.randn(2, 8)
    before = y.clone()
    add_adapters(
        y,
        torch.randn(2, 5),
        [torch.randn(2, 1, 3, 5)],
        [torch.randn(2, 1, 8, 3)],
        1.0,
        rows_by_adapter(torch.tensor([-1, 1])),
    )
    assert torch.equal(y[0], before[0])
    assert not torch.equal(y[1], before[1])
