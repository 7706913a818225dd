"""The page's second half, the evidence for its figures: sampled tokens, published versions, and settings."""

from html import escape

from lightning_trainer.report.markup import figure, folded, paragraph, section, table
from lightning_trainer.report.tokens import legend_html
from lightning_trainer.types import PolicyVersion, VersionState

from .example_rollout import rollout_html
from .report import QuickstartReport


def examples_section(report: QuickstartReport) -> str:
    """Show example rollouts token by token; empty if the report has none."""
    if not report.examples:
        return ""
    return section(
        "Token by token",
        paragraph(
            "What the engine saw and sampled, exactly. Point at a token, or tap it, for its id, log-probability, "
            "advantage, call and policy version."
        ),
        legend_html(),
        *(rollout_html(rollout) for rollout in report.examples),
    )


def ledger_section(report: QuickstartReport) -> str:
    """Show what became of the sampled tokens, by outcome, reason, and agent; empty without a ledger."""
    if not report.ledger:
        return ""
    merged: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in report.ledger:
        key = (str(row.outcome), row.reason, f"{row.agent} ({row.policy})" if row.policy else row.agent)
        tokens, calls = merged.get(key, (0, 0))
        merged[key] = (tokens + row.tokens, calls + row.calls)
    total = report.ledger_tokens
    one_agent = len({agent for _, _, agent in merged}) == 1
    rows = []
    for (outcome, reason, agent), (tokens, calls) in sorted(merged.items(), key=lambda entry: -entry[1][0]):
        what = f"{escape(outcome)} <small>{escape(reason)}</small>"
        numbers = [f"{tokens:,}", f"{calls:,}", f"{100 * tokens / total:.1f} %" if total else "–"]
        rows.append([what, *([] if one_agent else [escape(agent)]), *numbers])
    head = ["what became of them", *([] if one_agent else ["agent (policy)"]), "tokens", "calls", "share"]
    whose = f"Agent: {escape(report.ledger[0].agent)}." if one_agent else ""
    return section("Ledger", paragraph(_balance(report), whose), table(head, rows, text_columns=1 if one_agent else 2))


def _balance(report: QuickstartReport) -> str:
    total = report.ledger_tokens
    match report.ledger_balances:
        case True:
            return f'It <span class="good">balances</span>: all {total:,} sampled tokens are accounted for, each once.'
        case False:
            return (
                f'It <span class="bad">does not balance</span>: {total:,} tokens are accounted for, '
                f"{report.sampled_tokens:,} were sampled."
            )
        case None:
            return f"It accounts for {total:,} tokens; how many were sampled was not counted apart from it."


def versions_section(report: QuickstartReport) -> str:
    """Show every version with the distances measured by its probe; empty if the report has none."""
    if not report.versions:
        return ""
    published = [version for version in report.versions if version.version > 0]
    served = [version for version in published if version.state in (VersionState.LIVE, VersionState.RETIRED)]
    worst = max((v.probe_max_abs for v in served if v.probe_max_abs is not None), default=None)
    proven = sum(version.probe_max_abs is not None for version in served)
    refused = sum(version.state is VersionState.REFUSED for version in published)
    head = ["version", "state", "checksum", "max |Δ|", "mean |Δ|", "published in"]
    return section(
        "Served is published",
        paragraph(
            "After each publication, trainer and engine score the same fixed probe; |Δ| is how far their "
            "log-probabilities are apart, in nats.",
            f"A version is served only when none differs by more than {report.probe_tolerance:g}."
            if report.probe_tolerance is not None
            else "",
            f"The largest difference of a served version was {worst:.3g}." if worst is not None else "",
        ),
        folded(
            f"{proven} of {len(published)} published versions proven served, {refused} refused",
            table(head, [_version_row(version) for version in report.versions], text_columns=3),
        ),
    )


def _version_row(version: PolicyVersion) -> list[str]:
    css = {VersionState.LIVE: "good", VersionState.REFUSED: "bad"}.get(version.state, "")
    reason = f" <small>{escape(version.reason)}</small>" if version.reason else ""
    return [
        escape(version.name),
        f'<span class="{css}">{escape(str(version.state))}</span>{reason}',
        f"<code>{escape((version.checksum or '–')[:12])}</code>",
        figure(version.probe_max_abs, ".3g"),
        figure(version.probe_mean_abs, ".3g"),
        figure(version.publish_s, ".2f", " s"),
    ]


def settings_section(report: QuickstartReport) -> str:
    """Show the run's settings and the versions of its software; empty if neither was recorded."""
    pairs = [*report.settings.items(), *report.software.items()]
    if not pairs:
        return ""
    rows = [[escape(str(name)), escape(str(value))] for name, value in pairs]
    return section("How it was run", folded("Settings and versions", table(["name", "value"], rows, text_columns=2)))
