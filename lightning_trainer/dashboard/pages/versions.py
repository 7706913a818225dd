"""Versions: where each came from, how good it is, two compared on the same tasks, and forms to roll back or promote."""

from collections.abc import Sequence
from html import escape
from typing import Any

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dashboard.pages.asking import Asked, PageError
from lightning_trainer.dashboard.reading.history import compare_versions, known_policies
from lightning_trainer.dashboard.rendering import both_widths
from lightning_trainer.dashboard.site import Site
from lightning_trainer.report.curves import Curve, curve_chart, legend
from lightning_trainer.report.svg import drawing
from lightning_trainer.store.connection import Connection
from lightning_trainer.versions.archive import archive_root, stored_versions
from lightning_trainer.versions.listing import VersionRow, best_version, list_versions

_PAGE = 50
_LANE = 34
_MARGIN = 22
_SHOWN = {"serving": "serving", "refused": "refused", "stored": "stored"}


async def versions(site: Site, asked: Asked) -> dict[str, Any]:
    """Return a page of a policy's versions, newest first, with their curves and lineage."""
    policy, others = await _policy(site, asked)
    before = asked.number("before", 1)
    if policy is None:
        return {"policy": None, "others": others, "rows": [], "may_act": False}
    unread = await _unread(site, policy)
    stored = stored_versions(archive_root(site.config.shared_dir, policy.name))
    rows = await site.store.scan(
        lambda connection: list_versions(
            connection, policy, stored, before=before, newest=_PAGE, fresh=site.live is None
        )
    )
    numbers = [row["version"] for row in rows]
    rewards = {row["version"]: row["reward"] for row in rows if row["reward"] is not None}
    held_out = {row["version"]: row["held_out"] for row in rows if row["held_out"] is not None}
    curves = [
        Curve(name, list(found), list(found.values()))
        for name, found in (("reward in training", rewards), ("held-out", held_out))
        if found
    ]
    return {
        "policy": policy.name,
        "others": others,
        "rows": rows[::-1],
        "older": asked.link("/versions", before=numbers[0]) if len(rows) == _PAGE and numbers[0] > 0 else None,
        "best": best_version(rows),
        "unread": unread,
        "legend": legend([curve.name for curve in curves]),
        "chart": both_widths(
            lambda width, height: curve_chart(
                curves, width=width, height=height - 60, label="Reward and held-out score by version", x_name="version"
            )
        ),
        "lineage": both_widths(lambda width, _: lineage_chart(rows, width=width)),
        "may_act": site.live is not None,
    }


async def compare(site: Site, asked: Asked) -> dict[str, Any]:
    """Return two versions of a policy, compared on the tasks that both were evaluated on."""
    policy, _ = await _policy(site, asked)
    one, other = asked.number("a"), asked.number("b")
    if policy is None or one is None or other is None or one == other:
        raise PageError("name two versions of a policy: /versions/compare?policy=NAME&a=3&b=5")
    unread = await _unread(site, policy)
    scores, change = await site.store.scan(
        lambda connection: compare_versions(connection, policy, one, other, unread=site.live is None)
    )
    return {
        "unread": unread,
        "again": asked.link("/versions/compare"),
        "policy": policy.name,
        "a": one,
        "b": other,
        "scores": scores,
        "change": change,
        "better": sum(score.other > score.one for score in scores),
        "worse": sum(score.other < score.one for score in scores),
    }


async def confirm_rollback(site: Site, asked: Asked) -> dict[str, Any]:
    """Return the values of the form that confirms a rollback."""
    policy, _ = await _policy(site, asked)
    version = asked.number("version")
    if policy is None or version is None:
        raise PageError("name a policy and one of its versions: /versions/rollback?policy=NAME&version=12")
    name = policy.name
    live = site.live
    return {"policy": name, "version": version, "now": None if live is None else live.now().get(name)}


async def confirm_promotion(site: Site, asked: Asked) -> dict[str, Any]:
    """Return the values of the form that confirms a promotion, with what is known about the version."""
    policy, _ = await _policy(site, asked)
    version = asked.number("version")
    if policy is None or version is None:
        raise PageError("name a policy and one of its versions: /versions/promote?policy=NAME&version=12")
    rows = await site.store.scan(
        lambda connection: list_versions(connection, policy, (), before=version + 1, newest=1, fresh=False)
    )
    if not rows or rows[-1]["version"] != version:
        raise PageError(f"there is no version {version} of {policy.name!r}", 404)
    now = None if site.live is None else site.live.now().get(policy.name)
    return {"policy": policy.name, "version": version, "row": rows[-1], "now": now}


async def _unread(site: Site, policy: PolicyConfig) -> int:
    """Let the daemon read evaluations, and return how many of the policy's are left unread; 0 for a stopped run, whose
    pages read all of them."""
    return 0 if site.live is None else (await site.live.refresh_scores()).get(policy.name, 0)


async def _policy(site: Site, asked: Asked) -> tuple[PolicyConfig | None, list[str]]:
    """Return the policy that was asked for, or else the first, and the names of all."""

    def read(connection: Connection) -> list[str]:
        return known_policies(connection)

    names = [policy.name for policy in site.policies]
    names += [name for name in await site.store.scan(read) if name not in names]
    wanted = asked.text("policy") or next(iter(names), None)
    if wanted is None:
        return None, names
    if wanted not in names:
        raise PageError(f"there is no policy {wanted!r}; there are {', '.join(names) or 'none'}", 404)
    known = next((policy for policy in site.policies if policy.name == wanted), None)
    return known or PolicyConfig(name=wanted, agents=("*",), model="unknown"), names


def lineage_chart(rows: Sequence[VersionRow], *, width: int) -> str:
    """Draw the versions from left to right, with an arc where training went back.

    A version that does not continue from its left neighbor begins a lane of its own.

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
    label_width = max(34, 8 * len(f"v{rows[-1]['version']}") + 6)
    every = max(1, -(-label_width * len(rows) // width))
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
        if (len(rows) - 1 - index) % every == 0 or css == "serving":
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{y + 21:.1f}" text-anchor="middle">v{row["version"]}</text>'
            )
    return drawing(width, 2 * _MARGIN + _LANE * deepest + 8, parts, f"Lineage of {len(rows)} versions")
