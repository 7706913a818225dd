"""The actions that a page offers: each is a posted form, named like the command that does the same."""

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qs, urlencode

from fastapi import Request

from lightning_trainer.dashboard.site import Live
from lightning_trainer.errors import ConfigError, LightningError, RollbackError
from lightning_trainer.ingest.http.bodies import BodyTooLargeError, BodyTooSlowError, read_body

_LONGEST_NOTE = 10_000
_LONGEST_NAME = 512
_MOST_BYTES = 2**18
_MOST_FIELDS = 20

Action = Callable[[Live, Mapping[str, str]], Awaitable[tuple[str, str]]]
"""Returns a sentence about the outcome, and the page to go to."""


async def roll_back(live: Live, form: Mapping[str, str]) -> tuple[str, str]:
    """Roll a policy back to an earlier version."""
    policy, version = _name(form, "policy"), _version(form)
    return await live.roll_back(policy, version), f"/versions?{urlencode({'policy': policy})}"


async def promote(live: Live, form: Mapping[str, str]) -> tuple[str, str]:
    """Serve a version that is held back."""
    policy, version = _name(form, "policy"), _version(form)
    return await live.promote(policy, version), f"/versions?{urlencode({'policy': policy})}"


async def pause(live: Live, form: Mapping[str, str]) -> tuple[str, str]:
    """Pause a policy's training, with a reason."""
    policy, reason = _name(form, "policy"), form.get("reason", "").strip()[:_LONGEST_NOTE]
    return await live.pause(policy, reason or "someone paused it"), "/"


async def resume(live: Live, form: Mapping[str, str]) -> tuple[str, str]:
    """Resume a policy's training."""
    return await live.resume(_name(form, "policy")), "/"


async def label(live: Live, form: Mapping[str, str]) -> tuple[str, str]:
    """Give a rollout, or one of its attempts, a reward, a note, or both.

    Raises:
        ConfigError: the form has neither, the reward is not a number, or the note is too long.
    """
    rollout_id, note = _name(form, "rollout"), form.get("note", "").strip()
    given = form.get("reward", "").strip()
    if len(note) > _LONGEST_NOTE:
        raise ConfigError(f"the note has {len(note):,} characters; {_LONGEST_NOTE:,} are kept")
    if not given and not note:
        raise ConfigError("give a reward, a note, or both")
    try:
        reward = float(given) if given else None
    except ValueError:
        raise ConfigError(f"reward {given[:40]!r} is not a number, such as 0.5") from None
    said = await live.label(
        rollout_id,
        attempt_id=form.get("attempt") or None,
        reward=reward,
        name=form.get("name", "").strip() or "reward",
        note=note or None,
    )
    return said, f"/rollout?{urlencode({'id': rollout_id})}"


async def drop(live: Live, form: Mapping[str, str]) -> tuple[str, str]:
    """Exclude a rollout's attempts from training, with a reason."""
    rollout_id = _name(form, "rollout")
    reason = form.get("reason", "").strip()[:1000] or "someone dropped it"
    return await live.drop(rollout_id, reason=reason), f"/rollout?{urlencode({'id': rollout_id})}"


ACTIONS: Mapping[str, Action] = {
    "rollback": roll_back,
    "promote": promote,
    "pause": pause,
    "resume": resume,
    "label": label,
    "drop": drop,
}
"""By the name of the command that does the same."""


def _version(form: Mapping[str, str]) -> int:
    version = form.get("version", "")
    if not (version.isascii() and version.isdigit() and len(version) < 12):
        raise RollbackError(f"version {version[:40]!r} is not a version; write it as 12")
    return int(version)


def _name(form: Mapping[str, str], field: str) -> str:
    value = form.get(field, "")
    if not 0 < len(value) <= _LONGEST_NAME:
        raise ConfigError(f"{field} has {len(value)} characters; it is a name of 1 to {_LONGEST_NAME}")
    return value


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a small posted form; if several have the same name, the first.

    Raises:
        LightningError: it is not ``application/x-www-form-urlencoded``, or too long.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ConfigError("send the form as application/x-www-form-urlencoded")
    try:
        raw = await read_body(request.stream(), limit=_MOST_BYTES)
        fields = parse_qs(raw.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except (BodyTooLargeError, BodyTooSlowError, ValueError) as error:
        raise LightningError(f"the form could not be read: {error}") from error
    return {name: values[0] for name, values in fields.items()}
