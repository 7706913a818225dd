"""One example rollout as HTML, token by token: what the policy sampled, and each token's advantage in training."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from lightning_trainer.report.tokens import advantage_css, token_html

from .report import ExampleRollout, ExampleToken

_PROMPT_TOKENS_SHOWN = 60


def rollout_html(rollout: ExampleRollout) -> str:
    """Return the rollout's heading, its tokens, and a legend line about its calls."""
    largest = max((abs(token.advantage) for token in rollout.tokens if token.mask and token.advantage), default=0.0)
    first_sampled = next((i for i, token in enumerate(rollout.tokens) if _sampled(token)), len(rollout.tokens))
    folded = max(0, first_sampled - _PROMPT_TOKENS_SHOWN)
    parts = []
    if folded:
        parts.append(
            f"<details><summary>{folded:,} earlier prompt tokens</summary>"
            f"{_runs(rollout, rollout.tokens[:folded], largest)}</details>"
        )
    parts.append(_runs(rollout, rollout.tokens[folded:], largest))
    sampled = sum(map(_sampled, rollout.tokens))
    facts = [
        f"agent {rollout.agent}",
        *([f"step {rollout.step}"] if rollout.step is not None else []),
        f"reward {'none' if rollout.reward is None else f'{rollout.reward:g}'}",
        f"{len(rollout.segments)} call{'s' if len(rollout.segments) != 1 else ''}",
        f"{sampled:,} of {len(rollout.tokens):,} tokens sampled",
    ]
    return (
        f'<article class="rollout"><h3>{escape(rollout.title)}</h3><p class="facts">{escape(" · ".join(facts))}</p>'
        f'<div class="tokens">{"".join(parts)}</div></article>'
    )


def _sampled(token: ExampleToken) -> bool:
    return token.mask or token.segment is not None


def _runs(rollout: ExampleRollout, tokens: Sequence[ExampleToken], largest: float) -> str:
    """Return the tokens in order; each call's first sampled token is marked with the call's number."""
    parts = []
    for segment, run in groupby(tokens, key=lambda token: token.segment):
        if segment is not None:
            version = rollout.segments[segment].policy_version
            named = "unknown" if version is None else version
            parts.append(f'<b class="call" title="policy version {named}">call {segment + 1}</b>')
        parts += [_token(rollout, token, largest) for token in run]
    return "".join(parts)


def _token(rollout: ExampleRollout, token: ExampleToken, largest: float) -> str:
    css = advantage_css(token.advantage, largest) if token.mask else "u" if _sampled(token) else "m"
    return token_html(token.text, css, _title(rollout, token))


def _title(rollout: ExampleRollout, token: ExampleToken) -> str:
    facts = [f"token {token.id} {token.text!r}"]
    if _sampled(token) and not token.mask:
        return f"{facts[0]} · sampled without a choice, not trained"
    if not token.mask:
        return f"{facts[0]} · prompt or tool output, not trained"
    if token.logprob is not None:
        facts.append(f"logprob {token.logprob:.4f}")
    facts.append("advantage not measured" if token.advantage is None else f"advantage {token.advantage:+.4f}")
    if token.segment is not None:
        segment = rollout.segments[token.segment]
        facts.append(f"call {token.segment + 1} ({segment.call})")
        facts.append(f"version {'unknown' if segment.policy_version is None else segment.policy_version}")
    return " · ".join(facts)
