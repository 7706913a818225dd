"""How many forms of secrets are found, and how many texts without a secret are marked."""

from collections import Counter

from lightning_instrumentation.redaction import keys

from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.redaction.corpus import KINDS, texts
from benchmarks.redaction.forms import Secret, names, secrets

TITLE = "Secrets found, and texts marked without one"
_SEED = 20
_LONGEST_LEFT = 7
"""Characters of a secret, in one piece, that may stay."""
_SENTENCES = (
    "{}",
    "Here is what you need to deploy it:\n{}\nTell nobody.",
    "2026-01-05T10:00:00Z INFO starting with {} (from the environment)",
)


def run(quick: bool) -> list[Row]:
    of_each = 3 if quick else 30
    missed: Counter[str] = Counter()
    for number, secret in enumerate(secrets(_SEED, of_each)):
        if _survives(secret, _SENTENCES[number % len(_SENTENCES)]):
            missed[secret.form] += 1
    known = names()
    made = of_each * len(known)
    seldom = [form for form, count in missed.items() if 2 * count > of_each]
    rows = [
        at_least("finding", "forms of secrets", len(known), 150, ""),
        at_least("finding", "secrets found", 100 * (made - sum(missed.values())) / made, 95, "%", f"of {made:,}"),
        at_least(
            "finding",
            "forms found in most of their secrets",
            100 * (len(known) - len(seldom)) / len(known),
            95,
            "%",
            f"not: {', '.join(sorted(seldom))}" if seldom else "",
        ),
    ]
    for kind in KINDS:
        found = texts(kind, 400 if quick else 4000)
        marked = sum(keys.redact(text) is not text for text in found)
        share = 100 * marked / len(found) if found else None
        note = f"of {len(found):,} texts of up to 2,000 characters"
        rows.append(at_most("finding", f"{kind} marked", share, 1, "%", note))
    return rows


def _survives(secret: Secret, sentence: str) -> bool:
    left = keys.redact(sentence.replace("{}", secret.text))
    longest = _LONGEST_LEFT + 1
    return any(secret.secret[at : at + longest] in left for at in range(max(1, len(secret.secret) - _LONGEST_LEFT)))
