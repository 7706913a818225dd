"""The redaction rules, applied to a text or to the texts inside JSON.

Rules are applied one after the other. If a rule raises or returns something other than text, ``RedactionError`` is
raised, and nothing of the text may be recorded. The built-in rules and the user's patterns take time linear in the
length of the text; texts longer than ``LONGEST_FOR_FUNCTIONS`` are not passed to a user's function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation.errors import ConfigurationError, InstrumentationError
from lightning_instrumentation.redaction import documents, emails, keys
from lightning_instrumentation.redaction.named import is_secret
from lightning_instrumentation.redaction.patterns import replacing
from lightning_instrumentation.settings import RedactionRule

LONGEST_FOR_FUNCTIONS = 1 << 20
REPLACEMENT = "[redacted]"
_PREFIX = "regex:"


class RedactionError(InstrumentationError, RuntimeError):
    """A rule failed: its text must not be recorded."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One redaction rule."""

    name: str
    apply: Callable[[str], str]
    may_apply: Callable[[str], bool]
    """False if the rule would certainly change nothing in the text, nor in its JSON encoding."""

    def __call__(self, text: str) -> str:
        try:
            changed = self.apply(text)
        except Exception as error:
            raise RedactionError(f"the rule {self.name} raised {type(error).__name__}") from error
        if not isinstance(changed, str):
            raise RedactionError(f"the rule {self.name} returned {type(changed).__name__}, not text")
        return changed


class Redactor:
    """Applies its rules in order; it may have none."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._knows_names = any(rule is _KEYS for rule in self._rules)

    def __call__(self, text: str, *, payload: bool = False) -> str:
        """Return the recordable form of a text; if the text is JSON, each text in it is redacted, and it stays JSON.

        Args:
            payload: whether the text is arguments or a result: in their JSON, every text is content, whatever its key.

        Raises:
            RedactionError: a rule failed, or the text is too long for a user's function.
        """
        if not text or text[0] not in "[{":
            return self._plain(text)
        # An escape could hide what a rule looks for, or its digits run into it: 中sk-... is \\u4e2dsk-...
        if not ("\\u" in text or self._may_apply(text)):
            return text
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return self._plain(text)
        try:
            changed = documents.redacted(document, self._plain, self._named, payload=payload)
        except RecursionError as error:
            raise RedactionError("the document is nested too deeply to be redacted") from error
        # Unchanged texts keep their original encoding.
        return text if changed is document else _written(changed)

    def _may_apply(self, text: str) -> bool:
        for rule in self._rules:  # noqa: SIM110 - not ``any``: this is the hot path for every text of every span
            if rule.may_apply(text):
                return True
        return False

    def _plain(self, text: str) -> str:
        if documents.is_image(text):
            return text
        for rule in self._rules:
            text = rule(text)
        return text

    def _named(self, name: str, text: str) -> str:
        return keys.REPLACEMENT if self._knows_names and is_secret(name, text) else self._plain(text)


_KEYS = Rule("keys", keys.redact, keys.found_in)
_EMAILS = Rule("emails", emails.redact, emails.may_contain)


def redactor(rules: Iterable[RedactionRule]) -> Redactor:
    """Return the redactor with these rules and the one for keys, which only ``"none"`` switches off.

    Raises:
        ConfigurationError: a rule is invalid; the message has its value.
    """
    wanted = list(rules)
    if "none" in [rule for rule in wanted if isinstance(rule, str)]:
        if len(wanted) > 1:
            raise ConfigurationError(f'redact is {wanted!r}; "none" stands alone')
        return Redactor(())
    others = [rule for rule in (_rule(one) for one in wanted) if rule is not _KEYS]
    return Redactor((_KEYS, *others))


def _rule(given: RedactionRule) -> Rule:
    if isinstance(given, re.Pattern):
        return _of_pattern(given)
    if isinstance(given, str):
        if given == "keys":
            return _KEYS
        if given == "emails":
            return _EMAILS
        if given.startswith(_PREFIX):
            return _of_pattern(given.removeprefix(_PREFIX))
    elif callable(given):
        name = getattr(given, "__qualname__", type(given).__name__)
        return Rule(name, _bounded(given, LONGEST_FOR_FUNCTIONS), _always)
    raise ConfigurationError(
        f'redact has {given!r}; write "keys", "emails", "regex:...", "none", a compiled pattern or a function'
    )


def _of_pattern(pattern: re.Pattern[str] | str) -> Rule:
    if isinstance(pattern, str):
        return Rule(f"{_PREFIX}{pattern}", replacing(pattern, REPLACEMENT), _always)
    if not isinstance(pattern.pattern, str):
        raise ConfigurationError(f"redact has {pattern.pattern!r}, a pattern of bytes; write one of text")
    return Rule(f"{_PREFIX}{pattern.pattern}", replacing(pattern, REPLACEMENT), _always)


def _bounded(apply: Callable[[str], str], longest: int) -> Callable[[str], str]:
    def bounded(text: str) -> str:
        if len(text) > longest:
            raise ValueError(f"a text of {len(text)} characters is longer than {longest}")
        return apply(text)

    return bounded


def _written(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # Half of a surrogate pair is possible in JSON but not in UTF-8.
    return text if text.isprintable() else json.dumps(document, separators=(",", ":"))


def _always(text: str) -> bool:
    return True
