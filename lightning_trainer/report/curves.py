"""Curves of any range over steps, several in one frame, and the histogram of rewards; in the style of ``svg``.

A value that was not measured breaks its line. Colors are classes of the page's style sheet (``c0`` to ``c5``); each
curve also has a dash of its own, so that they can be told apart without colors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from lightning_trainer.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Frame,
    Scale,
    drawing,
    frame_of,
    hover_columns,
    x_axis,
    y_axis,
)

COLORS = 6
"""Number of classes, ``c0`` to ``c5``; a seventh curve starts over."""
_DOTS = 60
"""A curve of more points than this is drawn as a line without dots."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: its name and a value for each x of its own, ascending."""

    name: str
    xs: Sequence[int]
    ys: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Bin:
    """One column of a histogram over ``[low, high)``; the last one of several includes ``high``."""

    low: float
    high: float
    count: int
    largest: float | None = None
    """Largest value in the bin; None if the bin is empty."""
    href: str | None = None
    """Where a click on the bin leads."""
    chosen: bool = False


def ticks_between(low: float, high: float, count: int = 4) -> list[float]:
    """Return round values, ascending, the first at most ``low`` and the last at least ``high``."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return [0.0, 1.0]
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = abs(low) * 0.5 or 1.0
        low, high = (0.0, high + room) if low >= 0 else (low - room, 0.0 if high <= 0 else high + room)
    raw = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 2 - math.floor(math.log10(step))
    return [round(k * step, digits) for k in range(first, last + 1)]


def curve_chart(
    curves: Sequence[Curve], *, width: int, height: int, label: str, x_name: str = "step", zero: bool = False
) -> str:
    """Draw the curves in one frame; return an empty string if none of them has a value.

    Args:
        zero: start the y axis at 0 if nothing is below it.
    """
    values = [y for curve in curves for y in curve.ys if y is not None and math.isfinite(y)]
    xs = sorted({x for curve in curves for x in curve.xs})
    if not values:
        return ""
    ticks = ticks_between(min(0.0, *values) if zero else min(values), max(values))
    frame = frame_of(width, height, ticks, low=xs[0], high=xs[-1], pad=0.5)
    parts = [y_axis(frame, ticks, _short), x_axis(frame, xs, x_name)]
    for number, curve in enumerate(curves):
        parts.append(_line(frame, curve, number % COLORS))
    parts += hover_columns(frame, xs, _titles(curves, xs, x_name))
    return drawing(width, height, parts, label)


def histogram(bins: Sequence[Bin], *, width: int, height: int, label: str) -> str:
    """Draw a column for each bin; those with an ``href`` are links."""
    if not bins:
        return ""
    ticks = ticks_between(0.0, float(max(1, *(one.count for one in bins))))
    frame = Frame(
        width,
        height,
        Scale(0, len(bins), LEFT, width - RIGHT),
        Scale(ticks[0], ticks[-1], height - BOTTOM, TOP),
    )
    parts = [y_axis(frame, ticks, _short)]
    base = height - BOTTOM
    every = max(1, math.ceil(len(bins) * 40 / (width - LEFT - RIGHT)))
    for index, one in enumerate(bins):
        left, right = frame.x(index), frame.x(index + 1)
        top = frame.y(one.count)
        said = f"{one.low:g} to {one.high:g}: {one.count:,} attempt{'s' * (one.count != 1)}"
        column = (
            f'<rect class="bin{" chosen" * one.chosen}" x="{left + 1:.1f}" y="{top:.1f}" '
            f'width="{max(1.0, right - left - 2):.1f}" height="{base - top:.1f}"/>'
            f'<rect class="hit" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{base - TOP}">'
            f"<title>{escape(said)}</title></rect>"
        )
        if one.href is not None:
            column = f'<a href="{escape(one.href, quote=True)}" aria-label="{escape(said, quote=True)}">{column}</a>'
        parts.append(column)
        if index % every == 0:
            parts.append(f'<text class="tick" x="{left:.1f}" y="{base + 17}" text-anchor="middle">{one.low:g}</text>')
    parts.append(
        f'<text class="tick" x="{frame.x(len(bins)):.1f}" y="{base + 17}" text-anchor="end">{bins[-1].high:g}</text>'
        f'<line class="axis" x1="{LEFT}" x2="{width - RIGHT}" y1="{base}" y2="{base}"/>'
    )
    return drawing(width, height, parts, label, role="group")


def legend(names: Sequence[str]) -> str:
    """Return the key to the curves' colors; empty for a single curve."""
    if len(names) < 2:
        return ""
    swatches = (
        f'<span><i class="swatch c{number % COLORS}"></i> {escape(name)}</span>' for number, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(swatches)}</p>'


def _line(frame: Frame, curve: Curve, color: int) -> str:
    parts: list[str] = []
    run: list[str] = []
    at = (0, 0.0)
    known = [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if y is not None and math.isfinite(y)]
    dotted = len(known) <= _DOTS
    for x, y in [*zip(curve.xs, curve.ys, strict=True), (0, None)]:
        if y is not None and math.isfinite(y):
            run.append(f"{frame.x(x):.1f},{frame.y(y):.1f}")
            at = (x, y)
            continue
        if len(run) > 1:
            parts.append(f'<polyline class="curve c{color}" points="{" ".join(run)}"/>')
        elif run and not dotted:  # a line of one point would be invisible
            parts.append(_dot(frame, *at, color))
        run = []
    if dotted:
        parts += [_dot(frame, x, y, color) for x, y in known]
    return "".join(parts)


def _dot(frame: Frame, x: int, y: float, color: int) -> str:
    return f'<circle class="dot c{color}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3"/>'


def _titles(curves: Sequence[Curve], xs: Sequence[int], x_name: str) -> list[str]:
    known = [(curve.name, dict(zip(curve.xs, curve.ys, strict=True))) for curve in curves]
    return [
        "\n".join([f"{x_name} {x}", *(f"{name} {value:.4g}" for name, ys in known if (value := ys.get(x)) is not None)])
        for x in xs
    ]


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{value / scale:g} {unit}"
    if 0 < abs(value) < 1e-3:
        digits, _, exponent = f"{value:.3e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:.4g}"
