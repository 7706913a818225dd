"""The rules of redaction, applied to a text or to the strings inside JSON text.

Rules are applied one after the other. A rule that raises, or whose answer is no text, raises ``RedactionError``: then
nothing of the text may be recorded. The built-in rules are linear in the length of the text. Of the user's, patterns
that may take exponential time are refused, and texts beyond ``LONGEST_FOR_PATTERNS`` are not given to a pattern, nor
beyond ``LONGEST_FOR_FUNCTIONS`` to a function: one that is quadratic takes seconds then, and not for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation.errors import ConfigurationError, InstrumentationError
from lightning_instrumentation.redaction import emails, keys
from lightning_instrumentation.redaction.patterns import takes_exponential_time
from lightning_instrumentation.settings import RedactionRule

LONGEST_FOR_PATTERNS = 1 << 18
LONGEST_FOR_FUNCTIONS = 1 << 20
REPLACEMENT = "[redacted]"
_PREFIX = "regex:"


class RedactionError(InstrumentationError, RuntimeError):
    """A rule failed: what it was to redact must not be recorded."""


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    apply: Callable[[str], str]
    may_apply: Callable[[str], bool]
    """False where the rule would certainly change nothing in the text, nor in what is written in it as JSON."""

    def __call__(self, text: str) -> str:
        try:
            changed = self.apply(text)
        except Exception as error:
            raise RedactionError(f"the rule {self.name} raised {type(error).__name__}") from error
        if not isinstance(changed, str):
            raise RedactionError(f"the rule {self.name} returned {type(changed).__name__}, not text")
        return changed


class Redactor:
    """Rules in their order; none is a redactor too."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)

    def __call__(self, text: str) -> str:
        """Return what may be recorded of a text, which may be JSON: then of each string in it, and it stays JSON.

        Raises:
            RedactionError: a rule failed, or the text is too long for one of the user's.
        """
        # An escaped ASCII character could hide what a rule looks for.
        if not text or not ("\\u00" in text or self._may_apply(text)):
            return text
        if text[0] in "[{":
            try:
                document = json.loads(text)
            except (ValueError, RecursionError):
                return self._plain(text)
            try:
                changed = self._walk(document)
                # What did not change stays as it was written.
                return text if changed == document else _written(changed)
            except RecursionError as error:
                raise RedactionError("the document is nested too deeply to be redacted") from error
        return self._plain(text)

    def _may_apply(self, text: str) -> bool:
        for rule in self._rules:  # noqa: SIM110 - not ``any``: every text of every span comes by here
            if rule.may_apply(text):
                return True
        return False

    def _plain(self, text: str) -> str:
        for rule in self._rules:
            if rule.may_apply(text):
                text = rule(text)
        return text

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._plain(value)
        if isinstance(value, list):
            return [self._walk(one) for one in value]
        if isinstance(value, dict):
            return {self._plain(key): self._walk(one) for key, one in value.items()}
        return value


_KEYS = Rule("keys", keys.redact, keys.may_contain)
_EMAILS = Rule("emails", emails.redact, emails.may_contain)


def redactor(rules: Iterable[RedactionRule]) -> Redactor:
    """Return the redactor of these rules and of the one for keys, which only ``"none"`` switches off.

    Raises:
        ConfigurationError: a rule that is none, with its value.
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
            try:
                return _of_pattern(re.compile(given.removeprefix(_PREFIX)))
            except re.error as error:
                raise ConfigurationError(f"redact has {given!r}, which is no regular expression: {error}") from error
    elif callable(given):
        name = getattr(given, "__qualname__", type(given).__name__)
        return Rule(name, _bounded(given, LONGEST_FOR_FUNCTIONS), _always)
    raise ConfigurationError(
        f'redact has {given!r}; write "keys", "emails", "regex:...", "none", a compiled pattern or a function'
    )


def _of_pattern(pattern: re.Pattern[str]) -> Rule:
    if not isinstance(pattern.pattern, str):
        raise ConfigurationError(f"redact has {pattern.pattern!r}, a pattern of bytes; write one of text")
    if takes_exponential_time(pattern):
        raise ConfigurationError(
            f"redact has the pattern {pattern.pattern!r}, which can take for ever: inside a repetition is another, "
            "or alternatives that begin alike; take one away, or write the inner one so that it never goes back, as "
            "a++ or (?>...)"
        )
    apply = _bounded(lambda text: pattern.sub(REPLACEMENT, text), LONGEST_FOR_PATTERNS)
    return Rule(f"{_PREFIX}{pattern.pattern}", apply, _always)


def _bounded(apply: Callable[[str], str], longest: int) -> Callable[[str], str]:
    def bounded(text: str) -> str:
        if len(text) > longest:
            raise ValueError(f"a text of {len(text)} characters is longer than {longest}")
        return apply(text)

    return bounded


def _written(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # Half of a surrogate pair can be written in JSON and not in UTF-8.
    return text if text.isprintable() else json.dumps(document, separators=(",", ":"))


def _always(text: str) -> bool:
    return True
