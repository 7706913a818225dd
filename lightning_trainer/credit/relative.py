"""How much better than its peers: the group-relative advantage of scalars.

Formula: ``x - mean``, divided by ``F_norm``, which is the standard deviation (of the sample, ``n - 1``, as in verl) or
1. One alone is 0: it is exactly as good as the mean of its group. Source: Shao et al., DeepSeekMath (arXiv
2402.03300), section 4.1.2; Feng et al., GiGPO (arXiv 2505.10978), equations 3 and 7.
"""

import math
from collections.abc import Sequence

_EPSILON = 1e-6
"""Added to the deviation, as verl does: equal values give 0 and not 0 / 0."""


def relative(values_G: Sequence[float], *, normalize_by_std: bool) -> list[float]:
    """Return the advantages ``[G]`` of values that are compared with each other."""
    if len(values_G) < 2:
        return [0.0] * len(values_G)
    mean = math.fsum(values_G) / len(values_G)
    centered_G = [value - mean for value in values_G]
    if not normalize_by_std:
        return centered_G
    deviation = math.sqrt(math.fsum(value * value for value in centered_G) / (len(values_G) - 1))
    return [value / (deviation + _EPSILON) for value in centered_G]
