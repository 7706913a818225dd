"""How much better than its peers: the group-relative advantage of scalars.

Formula: ``x - mean``, divided by ``F_norm``, which is the standard deviation (of the sample, ``n - 1``, as in verl) or
1. One alone is 0: it is exactly as good as the mean of its group. Source: Shao et al., DeepSeekMath (arXiv
2402.03300), section 4.1.2; Feng et al., GiGPO (arXiv 2505.10978), equations 3 and 7.
"""

from collections.abc import Sequence

import numpy as np

_EPSILON = 1e-6
"""Added to the deviation, as verl does: equal values give 0 and not 0 / 0."""


def relative(values_G: Sequence[float], *, normalize_by_std: bool) -> list[float]:
    """Return the advantages ``[G]`` of values that are compared with each other."""
    if len(values_G) < 2:
        return [0.0] * len(values_G)
    values = np.asarray(values_G, dtype=np.float64)
    centred = values - values.mean()
    return (centred / (values.std(ddof=1) + _EPSILON) if normalize_by_std else centred).tolist()
