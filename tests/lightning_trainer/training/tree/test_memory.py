"""Memory of attention along a tree grows with the tokens and not with their square."""

import subprocess
import sys

import pytest

_MEASURE = """
import resource, sys
import torch
from lightning_trainer.training.tree.attention import TreePattern, tree_attention

torch.set_num_threads(1)
nodes = int(sys.argv[1])
inputs = [torch.randn((1, heads, nodes, 16), requires_grad=True) for heads in (2, 1, 1)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pattern = TreePattern(torch.full((nodes,), nodes))
tree_attention(torch.nn.Module(), *inputs, None, tree_pattern=pattern)[0].sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def _growth_mib(nodes: int) -> float:
    run = subprocess.run([sys.executable, "-c", _MEASURE, str(nodes)], capture_output=True, text=True, check=True)
    return int(run.stdout) / 1024


@pytest.mark.slow
def test_a_chain_of_32k_tokens_takes_four_times_the_memory_of_8k():
    short, long = _growth_mib(8_192), _growth_mib(32_768)
    assert long < 5 * short, (short, long)
    assert long < 32_768**2 / 2**20  # not even one byte for each pair
