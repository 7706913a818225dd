"""Versions: where each came from, how good it is, two compared on the same tasks, and the way back."""

from typing import Any

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dashboard.lineage_chart import lineage_chart
from lightning_trainer.dashboard.pages.asking import Asked, PageError
from lightning_trainer.dashboard.reading.progress import compare_versions, known_policies
from lightning_trainer.dashboard.rendering import both_widths
from lightning_trainer.dashboard.site import Site
from lightning_trainer.report.curves import Curve, curve_chart, legend
from lightning_trainer.store.connection import Connection
from lightning_trainer.versions.archive import archive_root, stored_versions
from lightning_trainer.versions.listing import list_versions

_PAGE = 50


async def versions(site: Site, asked: Asked) -> dict[str, Any]:
    policy, others = await _policy(site, asked)
    before = asked.number("before", 1)
    if policy is None:
        return {"policy": None, "others": others, "rows": [], "may_act": False}
    if site.live is not None:
        await site.live.refresh_scores()
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
    scored = [(row["held_out"], row["version"]) for row in rows if row["held_out"] is not None]
    return {
        "policy": policy.name,
        "others": others,
        "rows": rows[::-1],
        "older": asked.link("/versions", before=numbers[0]) if len(rows) == _PAGE and numbers[0] > 0 else None,
        "best": max(scored)[1] if scored else None,
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
    policy, _ = await _policy(site, asked)
    one, other = asked.number("a"), asked.number("b")
    if policy is None or one is None or other is None or one == other:
        raise PageError("name two versions of a policy: /versions/compare?policy=NAME&a=3&b=5")
    name = policy.name
    scores, paired = await site.store.scan(lambda connection: compare_versions(connection, name, one, other))
    return {
        "policy": name,
        "a": one,
        "b": other,
        "scores": scores,
        "paired": paired,
        "better": sum(score.other > score.one for score in scores),
        "worse": sum(score.other < score.one for score in scores),
    }


async def confirm_rollback(site: Site, asked: Asked) -> dict[str, Any]:
    policy, _ = await _policy(site, asked)
    version = asked.number("version")
    if policy is None or version is None:
        raise PageError("name a policy and one of its versions: /versions/rollback?policy=NAME&version=12")
    name = policy.name
    live = site.live
    return {"policy": name, "version": version, "now": None if live is None else live.now().get(name)}


async def confirm_promotion(site: Site, asked: Asked) -> dict[str, Any]:
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


async def _policy(site: Site, asked: Asked) -> tuple[PolicyConfig | None, list[str]]:
    """Return the policy that is asked for, else the first, and the names of all."""

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
