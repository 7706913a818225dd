"""The placeholders of a prompt, which a program fills in: a version that lacks one, or has others, breaks the program.

Sources: Python's "Format String Syntax" and ``string.Template``; Jinja's template designer documentation.
"""

import re
from collections.abc import Iterable
from string import Formatter

_SPEC = r":(?:(?:.?[<>=^])?[-+ ]?z?#?0?\d*[_,]?(?:\.\d+)?[bcdeEfFgGnosxX%]?|%[^{}]*)"
_JINJA = r"\{\{-?\s*[A-Za-z_]\w*(?:\.\w+|\[[^\]{}]*\]|\([^(){}]*\)|\s*\|\s*\w+)*\s*-?\}\}"
_FORMAT = rf"(?<!\{{)\{{(?:[A-Za-z_]\w*|\d*)(?:\.\w+|\[[^\]{{}}]*\])*(?:![rsa])?(?:{_SPEC})?\}}(?!\}})"
_TEMPLATE = r"\$\{[A-Za-z_]\w*\}|(?<![\w$])\$[A-Za-z_]\w*"
PLACEHOLDER = re.compile(f"{_JINJA}|{_TEMPLATE}|{_FORMAT}")
"""A placeholder of ``str.format``, Jinja, Mustache, or ``string.Template``."""
_STATEMENT = re.compile(r"\{%(?:(?!\{%).)*?(?:%\}|(?=\{%)|\Z)", re.DOTALL)
_BRACES = r"\{\{(?:(?!\{\{).)*?\}\}"
_COMMENT = r"\{#(?:(?!\{#).)*?#\}"
_EXPRESSION = re.compile(rf"{_BRACES}|{_COMMENT}|\{{\{{|\{{#", re.DOTALL)
"""Whatever Jinja would evaluate, and its comments; if one does not end, its beginning."""
_ONLY_JINJA = re.compile(rf"\{{%(?:(?!\{{%).)*?%\}}|{_COMMENT}|\{{\{{-?\s*[\w(\[][^{{}}:;]*\}}\}}", re.DOTALL)
"""What can only be Jinja, and not JSON or code of other languages, whose braces ``str.format`` leaves."""
_OPENING = re.compile(r"\{[{%#]")


def placeholders(text: str) -> set[str]:
    """Return the placeholders of a text, without the white space inside of braces."""
    return _without_space(PLACEHOLDER.findall(text))


def is_formatted(text: str) -> bool:
    """Whether a text has placeholders of ``str.format``."""
    return any(name.startswith("{") and not name.startswith("{{") for name in placeholders(text))


def is_template(text: str) -> bool:
    """Whether a text has placeholders of ``string.Template``."""
    return any(name.startswith("$") for name in placeholders(text))


def is_jinja(text: str) -> bool:
    """Whether a text may be rendered by Jinja; two braces may also be those that ``str.format`` leaves."""
    if _ONLY_JINJA.search(text) or any(name.startswith("{{") for name in placeholders(text)):
        return True
    return not is_formatted(text) and re.search(_BRACES, text, re.DOTALL) is not None


def runs_in_jinja(words: str) -> bool:
    """Whether Jinja would take some of these words for the template's own code, or stumble over them."""
    return _OPENING.search(words) is not None


def misfits(before: str, after: str) -> list[str]:
    """Return why a program that fills in one text could not fill in another in its place; nothing if it can."""
    had, has = placeholders(before), placeholders(after)
    if is_jinja(before):
        had, has = (names | _without_space(_EXPRESSION.findall(text)) for names, text in ((had, before), (has, after)))
    lost, new = had - has, has - had
    said = [f"it lacks {', '.join(sorted(lost))}"] if lost else []
    said += [f"nothing fills in {', '.join(sorted(new))}"] if new else []
    if _statements(before) != _statements(after):
        said.append(f"it must have the same Jinja statements, {' '.join(_statements(before)) or 'which are none'}")
    fields = _fields(before)
    if not said and fields and fields == _named(before) and _fields(after) != fields:
        said.append(
            "str.format fills it in, and takes other braces for placeholders: write { and } twice, {{ and }}, where "
            "they are braces"
        )
    return said


def in_place_of(before: str, text: str) -> str:
    """Return a text with the white space around it that the earlier text has: a program may put more after it."""
    start, end = len(before) - len(before.lstrip()), len(before.rstrip())
    return f"{before[:start]}{text.strip()}{before[end:] if end else ''}"


def _without_space(found: Iterable[str]) -> set[str]:
    return {re.sub(r"\s", "", one) for one in found}


def _statements(text: str) -> list[str]:
    return [" ".join(found.split()) for found in _STATEMENT.findall(text)]


def _fields(text: str) -> set[str] | None:
    """Return the names that ``str.format`` finds in a text; None if it refuses the text."""
    try:
        return {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    except ValueError:
        return None


def _named(text: str) -> set[str]:
    """Return the names in those placeholders that are ``str.format``'s."""
    found = (one for one in placeholders(text) if one.startswith("{") and not one.startswith("{{"))
    return {re.split(r"[!:]", one[1:-1])[0] for one in found}
