"""Rollouts: a search for attempts, and a group's attempts side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning_trainer.dashboard.pages.asking import Asked, PageError
from lightning_trainer.dashboard.reading.conversation import conversation
from lightning_trainer.dashboard.reading.one_rollout import read_rollout
from lightning_trainer.dashboard.reading.search import PAGE, Found, Search, reward_bins, search
from lightning_trainer.dashboard.reading.summaries import Summary
from lightning_trainer.dashboard.rendering import both_widths
from lightning_trainer.dashboard.site import Site
from lightning_trainer.explain import words
from lightning_trainer.explain.explainer import Explainer
from lightning_trainer.explain.explanation import ExplainedAttempt
from lightning_trainer.report.curves import histogram
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.types import AttemptState, RolloutMode, Span

OUTCOMES = tuple(state.value for state in AttemptState)
MODES = tuple(mode.value for mode in RolloutMode)
_SIDE_BY_SIDE = 16
_PARTS = (
    *("agent", "task", "group", "step", "policy", "outcome", "mode", "version", "least", "most", "rewarded"),
    *("since", "until", "text"),
)


async def rollouts(site: Site, asked: Asked) -> dict[str, Any]:
    """Return a page of the attempts that were searched for, with a histogram of their rewards."""
    wanted = _wanted(asked)
    found: Found = await site.store.scan(lambda connection: search(connection, wanted, site.summaries, site.policies))
    bins = [
        replace(
            one,
            # A search includes both of its bounds; a bin does not include its upper end.
            href=None
            if one.largest is None
            else asked.link("/rollouts", least=f"{one.low:.12g}", most=repr(one.largest), before=None),
            chosen=wanted.least is not None
            and wanted.least <= one.low
            and one.largest is not None
            and (wanted.most is None or one.largest <= wanted.most),
        )
        for one in reward_bins(found.rewards)
    ]
    label = f"Rewards of {len(found.rewards)} attempts"
    return {
        "found": found,
        "asked": {name: asked.text(name) for name in _PARTS},
        "filtered": any(name in asked for name in _PARTS),
        "paged": "before" in asked,
        "page_size": PAGE,
        "older": None if found.next is None else asked.link("/rollouts", before=f"{found.next[0]},{found.next[1]}"),
        "newest": asked.link("/rollouts", before=None),
        "any_reward": asked.link("/rollouts", least=None, most=None, rewarded=None, before=None),
        "histogram": both_widths(lambda width, _: histogram(bins, width=width, height=150, label=label)),
        "outcomes": OUTCOMES,
        "modes": MODES,
        "several_policies": len(site.policies) > 1,
    }


def _wanted(asked: Asked) -> Search:
    rewarded = asked.among("rewarded", ("yes", "no"))
    step, policy = asked.number("step"), asked.text("policy")
    if policy is not None and step is None:
        raise PageError(f"policy = {policy!r} says whose step is meant: name a step, too")
    return Search(
        task=asked.text("task"),
        group=asked.text("group"),
        step=step,
        policy=policy,
        since_ns=asked.time_ns("since"),
        until_ns=asked.time_ns("until"),
        agent=asked.text("agent"),
        version=asked.text("version"),
        outcome=asked.among("outcome", OUTCOMES),
        mode=asked.among("mode", MODES),
        least=asked.real("least"),
        most=asked.real("most"),
        rewarded=None if rewarded is None else rewarded == "yes",
        text=asked.text("text"),
        before=_cursor(asked.text("before")),
    )


def _cursor(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    started, comma, attempt_id = text.partition(",")
    if not (comma and started.isascii() and started.isdigit() and len(started) < 20 and int(started) < 2**63):
        raise PageError("before= is not the end of a page as our own links write it: remove it")
    return int(started), attempt_id


@dataclass(frozen=True, slots=True)
class Member:
    """One attempt of a group."""

    summary: Summary
    explained: ExplainedAttempt | None
    answer: str | None
    """The last text that a model said in the attempt."""

    @property
    def advantages(self) -> Sequence[tuple[int, str]]:
        """Return the number and advantage of each of its trained calls."""
        if self.explained is None:
            return ()
        return [
            (call.node.number, told) for call in self.explained.calls if (told := words.mean_advantage(call)) != "-"
        ]


async def group(site: Site, asked: Asked) -> dict[str, Any]:
    """Return a group's newest attempts side by side, with the mean and spread of their rewards."""
    group_id = asked.needed("id")

    def read(connection: Connection) -> tuple[list[Member], int]:
        attempts = attempt_table.select(connection, group_id=group_id, limit=_SIDE_BY_SIDE + 1)
        summaries = site.summaries.of(connection, attempts[-_SIDE_BY_SIDE:], site.policies)
        members = []
        explainer = Explainer(connection, site.config)
        for summary in summaries:
            one = read_rollout(connection, summary.attempt.rollout_id, explainer)
            explained = None if one is None or one.explanation is None else one.explanation.attempts
            own = next((e for e in explained or () if e.case.attempt_id == summary.attempt.attempt_id), None)
            members.append(Member(summary, own, _answer(() if own is None else own.case.spans)))
        return members, len(attempts)

    members, held = await site.store.scan(read)
    if not members:
        raise PageError(f"there is no group {group_id!r} in the store", 404)
    rewards = [member.summary.reward for member in members if member.summary.reward is not None]
    return {
        "group_id": group_id,
        "members": members,
        "more": held > _SIDE_BY_SIDE,
        "mean": sum(rewards) / len(rewards) if rewards else None,
        "spread": max(rewards) - min(rewards) if rewards else None,
    }


def _answer(spans: Sequence[Span]) -> str | None:
    entries, _ = conversation(spans)
    said = (part.text for entry in reversed(entries) if entry.sampled for part in entry.parts if part.kind == "text")
    return next(said, None)
