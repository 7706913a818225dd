"""Tokens of rollouts as HTML: what the policy sampled, and each token's advantage in training.

The sign is shown twice, by color and by the line below the token, for readers who cannot tell red from green.
The strength is the advantage's size relative to the rollout's largest, in five steps.
"""

import math
from html import escape

_STRENGTHS = 5
_SURPRISING = 4.0
"""Surprise in nats from which on a token has the darkest color."""


def legend_html() -> str:
    """Return the key to the colors."""
    swatches = "".join(f'<i class="t n{k}">&nbsp;</i>' for k in range(_STRENGTHS, 0, -1))
    swatches += '<i class="t z">&nbsp;</i>'
    swatches += "".join(f'<i class="t p{k}">&nbsp;</i>' for k in range(1, _STRENGTHS + 1))
    return (
        '<p class="legend"><span><i class="t m">gray</i> prompt and tool output: never trained</span>'
        '<span><i class="t u">dashes</i> sampled and not trained, such as the only token that a grammar left</span>'
        f'<span>sampled: less likely from now on <span class="ramp">{swatches}</span> more likely</span></p>'
    )


def token_html(text: str, css: str, title: str) -> str:
    """Return one token with its white space made visible.

    Args:
        css: ``m`` (not sampled), ``u`` (not trained), or a class of ``advantage_css`` or ``surprise_css``.
    """
    visible = escape(text) if text.strip(" ") or not text else "·" * len(text)
    visible = visible.replace("\n", "↵\n").replace("\t", "⇥\t") or "∅"
    return f'<span class="t {css}" title="{escape(title, quote=True)}">{visible}</span>'


def advantage_css(advantage: float | None, largest: float) -> str:
    """Return the class of a trained token; ``largest`` is the largest absolute advantage on the same scale."""
    if not advantage:
        return "z"
    strength = max(1, round(_STRENGTHS * abs(advantage) / largest))
    return f"{'p' if advantage > 0 else 'n'}{strength}"


def surprise_css(logprob: float | None) -> str:
    """Return the class of a sampled token by how unlikely it was: the darkest from four nats (1 in 55) on."""
    if logprob is None or math.isnan(logprob):
        return "u"
    return f"s{1 + int(min(-logprob, _SURPRISING) * (_STRENGTHS - 1) / _SURPRISING)}" if logprob < -1e-4 else "z"


def surprise_legend_html() -> str:
    """Return the key to the colors of ``surprise_css``."""
    swatches = '<i class="t z">&nbsp;</i>' + "".join(f'<i class="t s{k}">&nbsp;</i>' for k in range(1, _STRENGTHS + 1))
    return (
        '<p class="legend"><span><i class="t m">gray</i> prompt and tool output: never trained</span>'
        f'<span>sampled: certain <span class="ramp">{swatches}</span> {_SURPRISING:g} nats or more</span></p>'
    )
