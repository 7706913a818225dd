"""Charts as inline SVG, without a library: nothing to load, nothing to run, colors from the page's own variables.

Every chart is drawn for a given width in CSS pixels, so that text keeps its size; the page carries a wide and a narrow
drawing and shows one. All text is escaped here. In SVG, y grows downwards: ``Scale`` reverses it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 38
"""Margins of a chart in pixels, for its axes."""
_LABEL_WIDTH = 34
"""Width that one label of the x axis needs."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values ``[low, high]`` linearly to pixels ``[start, end]``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Frame:
    """A drawing's size and its two scales."""

    width: int
    height: int
    x: Scale
    y: Scale


@dataclass(frozen=True, slots=True)
class Series:
    """One layer of a stack: its name, its CSS class, and one value per column."""

    name: str
    css: str
    values: Sequence[float]


def nice_ticks(high: float, count: int = 5) -> list[float]:
    """Return round values from 0 to at least ``high``: steps of 1, 2 or 5 times a power of ten."""
    if not high > 0 or not math.isfinite(high):
        return [0.0, 1.0]
    raw = high / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw * (1 - 1e-9))
    return [round(k * step, 10) for k in range(math.ceil(high / step - 1e-9) + 1)]


def line_chart(
    xs: Sequence[int], ys: Sequence[float | None], *, width: int, height: int, titles: Sequence[str], label: str
) -> str:
    """Draw a share in [0, 1] over steps; a missing value is a gap in the line, not zero."""
    frame = frame_of(width, height, [0.0, 1.0], low=min(xs), high=max(xs), pad=0.5)
    parts = [y_axis(frame, [0, 0.25, 0.5, 0.75, 1.0], lambda v: f"{100 * v:.0f} %"), x_axis(frame, xs, "step")]
    run: list[tuple[float, float]] = []
    for x, y in [*zip(xs, ys, strict=True), (0, None)]:
        if y is not None:
            run.append((frame.x(x), frame.y(y)))
            continue
        if len(run) > 1:
            points = " ".join(f"{px:.1f},{py:.1f}" for px, py in run)
            base = frame.y(0)
            parts.append(
                f'<polygon class="area" points="{run[0][0]:.1f},{base:.1f} {points} {run[-1][0]:.1f},{base:.1f}"/>'
            )
            parts.append(f'<polyline class="line" points="{points}"/>')
        run = []
    for x, y in zip(xs, ys, strict=True):
        if y is not None:
            parts.append(f'<circle class="dot" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5"/>')
    parts += hover_columns(frame, xs, titles)
    return drawing(frame.width, frame.height, parts, label)


def stacked_bars(
    xs: Sequence[int],
    series: Sequence[Series],
    *,
    width: int,
    height: int,
    titles: Sequence[str],
    unit: str,
    label: str,
) -> str:
    """Draw columns of stacked values, the first series at the bottom."""
    totals = [sum(column) for column in zip(*(layer.values for layer in series), strict=True)]
    ticks = nice_ticks(max(totals, default=0.0))
    frame = frame_of(width, height, ticks, low=min(xs), high=max(xs), pad=0.5)
    parts = [y_axis(frame, ticks, lambda v: f"{v:g} {unit}"), x_axis(frame, xs, "step")]
    bar = max(1.0, 0.72 * (frame.x(xs[0] + 1) - frame.x(xs[0])))
    for column, x in enumerate(xs):
        below = 0.0
        for layer in series:
            value = layer.values[column]
            top = frame.y(below + value)
            parts.append(
                f'<rect class="{layer.css}" x="{frame.x(x) - bar / 2:.1f}" y="{top:.1f}" width="{bar:.1f}" '
                f'height="{max(0.0, frame.y(below) - top):.1f}"/>'
            )
            below += value
    parts += hover_columns(frame, xs, titles)
    return drawing(frame.width, frame.height, parts, label)


def interval_chart(rows: Sequence[tuple[str, str, float, tuple[float, float]]], *, width: int, label: str) -> str:
    """Draw shares with their intervals, one below the other; a row is (name, CSS class, share, interval)."""
    row_height, left, right = 40, 64, 22
    height = 12 + row_height * len(rows) + 26
    x = Scale(0, 1, left, width - right)
    parts = []
    bottom = 8 + row_height * len(rows)
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="8" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{100 * tick:.0f} %</text>'
        )
    for index, (name, css, share, (low, high)) in enumerate(rows):
        y = 8 + row_height * (index + 0.5)
        title = f"{name}: {100 * share:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"
        parts.append(
            f'<g class="{css}"><title>{escape(title)}</title>'
            f'<text class="name" x="{left - 12}" y="{y + 5:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="share" x="{x(0):.1f}" y="{y - 9:.1f}" width="{x(share) - x(0):.1f}" height="18" rx="2"/>'
            f'<path class="whisker" d="M{x(low):.1f} {y:.1f}H{x(high):.1f}'
            f'M{x(low):.1f} {y - 6:.1f}v12M{x(high):.1f} {y - 6:.1f}v12"/>'
            f"</g>"
        )
    return drawing(width, height, parts, label)


def frame_of(width: int, height: int, ticks: Sequence[float], *, low: float, high: float, pad: float) -> Frame:
    """Return a frame whose y axis spans the ticks and whose x axis spans ``[low - pad, high + pad]``."""
    x = Scale(low - pad, high + pad, LEFT, width - RIGHT)
    y = Scale(ticks[0], ticks[-1], height - BOTTOM, TOP)
    return Frame(width, height, x, y)


def y_axis(frame: Frame, ticks: Sequence[float], text: Callable[[float], str]) -> str:
    """Draw a line across the frame at each tick, with its label."""
    right = frame.width - RIGHT
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{frame.y(t):.1f}" y2="{frame.y(t):.1f}"/>'
        f'<text class="tick" x="{LEFT - 7}" y="{frame.y(t) + 4:.1f}" text-anchor="end">{escape(text(t))}</text>'
        for t in ticks
    )


def x_axis(frame: Frame, xs: Sequence[int], name: str) -> str:
    """Draw the line at the bottom, labeled with as many round values as fit; ``xs`` ascend."""
    text_width = 8 * len(str(xs[-1]))
    label_width = max(_LABEL_WIDTH, text_width + 6)
    room = max(1, int((frame.width - LEFT - RIGHT) / label_width))
    steps = (factor * 10**power for power in range(19) for factor in (1, 2, 5))
    every = next(step for step in steps if (xs[-1] - xs[0] + 1) / step <= room)
    shown = range(-(-xs[0] // every) * every, xs[-1] + 1, every) or [xs[0]]
    base = frame.height - BOTTOM
    furthest = frame.width - text_width / 2  # a label cut off at the edge reads as another number
    labels = "".join(
        f'<text class="tick" x="{min(frame.x(x), furthest):.1f}" y="{base + 17}" text-anchor="middle">{x}</text>'
        for x in shown
    )
    middle = (LEFT + frame.width - RIGHT) / 2
    return (
        f'<line class="axis" x1="{LEFT}" x2="{frame.width - RIGHT}" y1="{base}" y2="{base}"/>{labels}'
        f'<text class="tick" x="{middle:.1f}" y="{frame.height - 4}" text-anchor="middle">{escape(name)}</text>'
    )


def hover_columns(frame: Frame, xs: Sequence[int], titles: Sequence[str]) -> list[str]:
    """Return invisible columns with the steps' titles, easier to hit than a dot: each reaches halfway to the next."""
    edges = [frame.x.start, *(frame.x((x + following) / 2) for x, following in pairwise(xs)), frame.x.end]
    height = frame.height - TOP - BOTTOM
    return [
        f'<rect class="hit" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{height}">'
        f"<title>{escape(title)}</title></rect>"
        for (left, right), title in zip(pairwise(edges), titles, strict=True)
    ]


def drawing(width: int, height: int, parts: Sequence[str], label: str, *, role: str = "img") -> str:
    """Return the whole SVG; a screen reader says ``label``. A drawing with links has the role ``group``."""
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="{role}" '
        f'aria-label="{escape(label, quote=True)}">{"".join(parts)}</svg>'
    )
