"""Memory of attention along a tree grows with the tokens and not with their square."""

import os
import subprocess
import sys

import pytest

_MEASURE = """
import re, sys
from pathlib import Path
import torch
from lightning_trainer.training.tree.attention import TreePattern, tree_attention

torch.set_num_threads(1)

def kib(name):  # not ru_maxrss, which begins with the peak of the process that started this one
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def forward_and_backward(nodes):
    inputs = [torch.randn((1, heads, nodes, 16), requires_grad=True) for heads in (2, 1, 1)]
    pattern = TreePattern(torch.full((nodes,), nodes))
    tree_attention(torch.nn.Module(), *inputs, None, tree_pattern=pattern)[0].sum().backward()

forward_and_backward(1024)  # what is loaded with the first operation is not attention's
before = kib("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
forward_and_backward(int(sys.argv[1]))
print(kib("VmHWM") - before)
"""


def _growth_mib(nodes: int) -> float:
    # Large blocks are given back at once, so that the peak is what is in use and not what the heap was broken into.
    environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", _MEASURE, str(nodes)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    return int(run.stdout) / 1024


@pytest.mark.slow
def test_a_chain_of_32k_tokens_takes_four_times_the_memory_of_8k():
    short, long = _growth_mib(8_192), _growth_mib(32_768)
    assert long < 5 * short, (short, long)
    assert long < 32_768**2 / 2**20  # not even one byte for each pair
