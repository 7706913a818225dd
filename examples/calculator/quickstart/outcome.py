"""The page's first half: did the agent get better, how, and at what cost in time."""

from collections.abc import Sequence
from html import escape
from statistics import median

from lightning_trainer.report.markup import figure, folded, for_both_widths, paragraph, percent, section, table
from lightning_trainer.report.svg import Series, interval_chart, line_chart, stacked_bars

from .report import HeldOut, StepResult

_STAGES = ("rollout", "build", "train", "publish")


def held_out_section(held_out: HeldOut) -> str:
    """Show the success before and after with 95 % intervals, and whether the difference is evidence."""
    before, after = held_out.before, held_out.after
    rows = [("before", "before", before.share, before.interval), ("after", "after", after.share, after.interval)]
    label = f"Held-out success {percent(before.share)} before and {percent(after.share)} after, with 95 % intervals"
    return section(
        "Held-out success",
        f'<p class="big"><span class="was">{percent(before.share)}</span> ',
        '<span class="arrow" aria-label="to">→</span> ',
        f'<span class="is">{percent(after.share)}</span></p>',
        paragraph(*_verdict(held_out)),
        for_both_widths(lambda width, _: interval_chart(rows, width=width, label=label)),
        _families(held_out),
    )


def _verdict(held_out: HeldOut) -> list[str]:
    before, after, change = held_out.before, held_out.after, held_out.difference
    sentences = [f"{before.successes} of {before.n} tasks before, {after.successes} of {after.n} after."]
    if change is None:
        return sentences
    low, high = change.interval
    p_value = "p &lt; 0.0001" if change.p_value < 1e-4 else f"p = {change.p_value:.4f}"
    sentences.append(
        f"{100 * change.difference:+.1f} points (95 % interval {100 * low:+.1f} to {100 * high:+.1f}); "
        f"{change.gained} tasks gained, {change.lost} lost, exact McNemar {p_value}."
    )
    if low <= 0 <= high:
        sentences.append("<strong>The interval includes zero: this is not evidence of a change.</strong>")
    return sentences


def _families(held_out: HeldOut) -> str:
    before, after = held_out.before.by_family, held_out.after.by_family
    names = sorted(before.keys() | after.keys())
    if not names:
        return ""
    rows = [
        [escape(name), *(f"{r.successes} / {r.n}" if (r := side.get(name)) else "–" for side in (before, after))]
        for name in names
    ]
    return folded("By wording", table(["wording", "before", "after"], rows))


def reward_section(steps: Sequence[StepResult]) -> str:
    """Show the mean reward of each step: as a curve if all are in [0, 1], else as a table."""
    title = "Reward, step by step"
    if not steps:
        return section(title, paragraph("No step was trained."))
    xs, ys = [step.step for step in steps], [step.reward_mean for step in steps]
    if all(y is None or 0 <= y <= 1 for y in ys):
        titles = [_reward_title(step) for step in steps]
        label = f"Mean reward of the sampled rollouts over {len(steps)} steps"
        shown = for_both_widths(
            lambda width, height: line_chart(xs, ys, width=width, height=height, titles=titles, label=label)
        )
    else:  # an axis of shares would misrepresent rewards of another range
        shown = table(["step", "reward"], [[str(x), figure(y, ".3f")] for x, y in zip(xs, ys, strict=True)])
    return section(
        title,
        paragraph(
            "Mean reward of the rollouts that each step was trained on, sampled at the agent's own temperature. "
            "The held-out figures above take the most likely answer instead."
        ),
        shown,
    )


def _reward_title(step: StepResult) -> str:
    lines = [f"step {step.step}", f"reward {figure(step.reward_mean, '.3f')}"]
    if step.groups_trained is not None:
        lines.append(f"{step.groups_trained} of {step.groups} groups trained")
    if step.solved_groups is not None:
        lines.append(f"{step.solved_groups} groups solved by every rollout")
    return "\n".join(lines)


def time_section(steps: Sequence[StepResult]) -> str:
    """Show the seconds of each step by stage; empty if no stage was measured."""
    measured = {name: [s for step in steps if (s := step.seconds.get(name)) is not None] for name in _STAGES}
    names = [name for name in _STAGES if measured[name]]
    if not names:
        return ""
    xs = [step.step for step in steps]
    series = [Series(name, f"stage-{name}", [step.seconds.get(name) or 0.0 for step in steps]) for name in names]
    titles = [_time_title(step, names) for step in steps]
    label = f"Seconds of each step by stage: {', '.join(names)}"
    total = sum(map(sum, measured.values())) or 1.0
    rows = [
        [
            f'<i class="swatch stage-{name}"></i> {name}',
            f"{median(measured[name]):.2f} s",
            f"{max(measured[name]):.2f} s",
            f"{sum(measured[name]):.1f} s",
            f"{100 * sum(measured[name]) / total:.1f} %",
        ]
        for name in names
    ]
    return section(
        "Where the time goes",
        for_both_widths(
            lambda width, height: stacked_bars(
                xs, series, width=width, height=height, titles=titles, unit="s", label=label
            )
        ),
        table(["stage", "median", "longest", "sum", "share"], rows),
    )


def _time_title(step: StepResult, names: Sequence[str]) -> str:
    seconds = {name: step.seconds.get(name) for name in names}
    total = sum(value for value in seconds.values() if value is not None)
    return "\n".join(
        [f"step {step.step}: {total:.1f} s", *(f"{k} {figure(v, '.2f', ' s')}" for k, v in seconds.items())]
    )


def sharing_section(steps: Sequence[StepResult]) -> str:
    """Show how many tokens sharing prefixes saved; empty if nothing was computed."""
    trained = sum(step.tokens_trained for step in steps)
    computed = sum(step.tokens_computed for step in steps)
    unshared = sum(step.tokens_sequential for step in steps)
    if not computed:
        return ""
    figures = (
        ("in the samples, end to end", f"{unshared:,}"),
        (
            "through the model, shared prefixes once",
            f"{computed:,} <small>{unshared / computed:.1f} × fewer</small>",
        ),
        ("sampled by the policy and trained", f"{trained:,}"),
    )
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures)
    return section("Tokens", f'<dl class="figures">{items}</dl>')
