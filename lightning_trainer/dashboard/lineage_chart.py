"""Versions as a drawing: a lane for each way that training went, an arc where it went back."""

from collections.abc import Sequence
from html import escape

from lightning_trainer.report.svg import drawing
from lightning_trainer.versions.listing import VersionRow

_LANE = 34
_MARGIN = 22
_SHOWN = {"serving": "serving", "refused": "refused", "stored": "stored"}


def lineage_chart(rows: Sequence[VersionRow], *, width: int) -> str:
    """Draw the versions from left to right; one that does not go on from its left neighbor has a lane of its own.

    Args:
        rows: first to last.
    """
    if len(rows) < 2:
        return ""
    most = max(8, (width - 2 * _MARGIN) // 22)
    rows = rows[-most:]
    lanes: dict[int, int] = {}
    deepest = 0
    for index, row in enumerate(rows):
        parent = row["parent"]
        if index == 0 or parent is None:
            lanes[row["version"]] = 0
        elif parent == rows[index - 1]["version"]:
            lanes[row["version"]] = lanes[parent]
        else:
            deepest += 1
            lanes[row["version"]] = deepest
    gap = (width - 2 * _MARGIN) / (len(rows) - 1)
    places = {
        row["version"]: (_MARGIN + index * gap, _MARGIN + _LANE * lanes[row["version"]])
        for index, row in enumerate(rows)
    }
    parts = []
    for row in rows:
        x, y = places[row["version"]]
        parent = row["parent"]
        if parent in places:
            from_x, from_y = places[parent]
            middle = (from_x + x) / 2
            parts.append(
                f'<path class="descent" d="M{from_x:.1f} {from_y:.1f}C{middle:.1f} {from_y:.1f} '
                f'{middle:.1f} {y:.1f} {x:.1f} {y:.1f}"/>'
            )
    every = max(1, -(-34 * len(rows) // width))
    for index, row in enumerate(rows):
        x, y = places[row["version"]]
        held_out = "" if row["held_out"] is None else f", held-out {row['held_out']:.3f}"
        came = "" if row["parent"] is None else f", from v{row['parent']}"
        title = f"v{row['version']}: {row['state']}{came}{held_out}"
        css = _SHOWN.get(row["state"], "gone")
        parts.append(
            f'<circle class="version {css}" cx="{x:.1f}" cy="{y:.1f}" r="{8 if css == "serving" else 6}">'
            f"<title>{escape(title)}</title></circle>"
        )
        if index % every == 0 or css == "serving":
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{y + 21:.1f}" text-anchor="middle">v{row["version"]}</text>'
            )
    return drawing(width, 2 * _MARGIN + _LANE * deepest + 8, parts, f"Lineage of {len(rows)} versions")
