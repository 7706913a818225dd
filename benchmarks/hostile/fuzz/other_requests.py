"""All other requests: feedback, logs, what people do by hand, prompts, forms of the dashboard, and questions with
absurd parameters.

Rollouts that are labeled, dropped, or forgotten by hand are a stranger's own.
"""

import hashlib
import random
from typing import Any
from urllib.parse import quote, urlencode

from lightning_instrumentation import semconv

from benchmarks.hostile.fuzz.json_requests import base
from benchmarks.hostile.fuzz.mutation import bytes_mutated, mutated

_JSON = {"content-type": "application/json"}
_PLAIN = {"content-type": "text/plain"}
_FORM = {"content-type": "application/x-www-form-urlencoded"}
Sent = tuple[str, str, bytes, dict[str, str]]
"""Method, path, body and headers."""

_QUESTIONS: dict[str, tuple[str, ...]] = {
    "/lightning/status": (),
    "/lightning/agents": (),
    "/lightning/explain": ("rollout", "last", "policy", "agent", "width"),
    "/lightning/runs": (),
    "/lightning/selection": (),
    "/lightning/feedback": (),
    "/lightning/challenge": ("nonce",),
    "/lightning/prompts": (),
    "/lightning/prompts/clerk": ("before", "limit", "used_in"),
    "/lightning/prompts/%00": ("before", "limit"),
    "/lightning/prompts/clerk/earned": (),
    "/lightning/prompts/%00/earned": (),
    "/lightning/policies/math": ("before", "limit", "steps_done", "groups_wanted"),
    "/lightning/policies/math/lost_groups": ("prefix", "after", "limit"),
    "/lightning/policies/math/groups": ("prefix", "mode", "taken_until", "taken_after", "after", "limit"),
    "/lightning/groups": ("prefix", "mode", "after", "limit"),
    "/lightning/policies/math/versions": ("before", "limit"),
    "/lightning/policies/math/metrics": ("after", "limit"),
    "/lightning/policies/other": ("before",),
    "/healthz": (),
    "/readyz": (),
    "/metrics": (),
    "/": (),
    "/rollouts": (
        *("agent", "task", "group", "step", "policy", "outcome", "mode", "version", "least", "most", "rewarded"),
        *("since", "until", "text", "before", "said"),
    ),
    "/group": ("id", "attempts"),
    "/rollout": ("id", "shade"),
    "/span": ("trace", "span"),
    "/text": ("trace", "span", "attribute"),
    "/agents": (),
    "/versions": ("policy", "before"),
    "/versions/compare": ("policy", "a", "b"),
    "/versions/rollback": ("policy", "version"),
    "/versions/promote": ("policy", "version"),
    "/agents/prompts": ("agent",),
    "/prompts": ("prompt", "before"),
    "/image": ("trace", "span", "attribute", "name"),
    "/charts": ("policy", "first", "last"),
    "/costs": ("policy",),
    "/setup": (),
    "/static/dashboard.css": (),
    "/static/..%2f..%2fetc%2fpasswd": (),
}
_VALUES = (
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "3",
        "train",
        "evaluate",
        "yes",
        "succeeded",
        "math",
        "x",
        "x*",
        "1,2",
        "1.5",
        "math@v1",
    ),
    *("999999999999999999", "9223372036854775807", "9223372036854775808", "9" * 30, "9" * 5000, "1e308", "-1e999"),
    *("nan", "inf", "2026-11-23T22:55", "0001-01-01T00:00", "9999-12-31T23:59", "0001-01-01T00:00+23:59", "2026-W01"),
    *("\x00", "%00", "\u202e", "é" * 300, "x" * 3000, "' OR 1=1 --", "../..", "²", "٣", "a" * 32, "b" * 16, "\n"),
)


def asked(names: list[str], rng: random.Random) -> Sent:
    """Return a question with some of its parameters."""
    if rng.random() < 0.1:
        return (
            "GET",
            f"{base(rng, plain=0.2)}/models{rng.choice(('', '', '/math', '/math@v99999999999999999999', '/%00'))}",
            b"",
            {},
        )
    path, parameters = rng.choice(list(_QUESTIONS.items()))
    chosen = rng.sample(parameters, rng.randint(0, min(4, len(parameters))))
    query = urlencode([(name, _value(names, rng)) for name in chosen])
    if rng.random() < 0.05:
        query += rng.choice(("&", "&%zz=%", "&limit=1&limit=2", "=&=", "%ff=%ff"))
    return "GET", f"{path}?{query}" if query else path, b"", {}


def by_hand(names: list[str], rng: random.Random) -> Sent:
    """Return what people ask by a command: labels, drops, forgetting, judging, pauses, rollbacks, promotions."""
    own = names[1]
    policy = rng.choice(("math", "math", "other"))
    path, body = rng.choice(
        (
            (
                f"/lightning/rollouts/{quote(f'r-{own}', safe='')}/labels",
                {"reward": 0.5, "name": "reward", "note": "it helped", "attempt_id": own, "by": "a person"},
            ),
            ("/lightning/drop", {"name": f"r-{own}", "kind": "rollout", "policy": "math", "reason": "broken"}),
            ("/lightning/drop", {"name": "math@12"}),
            ("/lightning/forget", {"rollout": f"r-{own}"}),
            ("/lightning/forget", {"source": f"person-{rng.randrange(9)}"}),
            ("/lightning/judge", {"judge": "polite", "names": [f"r-{own}"], "again": True, "dry_run": True}),
            ("/lightning/judge", {"judge": "polite", "since": rng.choice(_VALUES), "shuffle": False, "report": True}),
            (f"/lightning/policies/{policy}/pause", {"reason": "for the night"}),
            (f"/lightning/policies/{policy}/resume", {}),
            (f"/lightning/policies/{policy}/rollback", {"version": rng.choice((0, 3, 2**63, 10**30))}),
            (f"/lightning/policies/{policy}/promote", {"version": rng.choice((0, 3, 2**63, 10**30))}),
            ("/lightning/score", {"policy": policy, "token_ids": [[1, 2, 3], [rng.choice((0, -1, 2**31))]]}),
        )
    )
    return "POST", path, mutated(body, rng), _JSON


def feedback(names: list[str], rng: random.Random) -> Sent:
    """Return feedback by one of the two routes, or the deletion of a score."""
    name = rng.choice(names)
    if rng.random() < 0.5:
        body: dict[str, Any] = {
            "source": f"person-{rng.randrange(50)}",
            "kind": "person",
            "response_id": f"response-{name}",
            "score": 4.0,
            "scale": [0, 5],
            "edit": "It opens at nine.",
            "comment": "no",
            "id": f"mine-{rng.randrange(99)}",
        }
        body |= rng.choice(({}, {"rollout_id": f"r-{name}"}, {"attempt_id": name}, {"trace_id": "ab" * 16}))
        if rng.random() < 0.3:
            body = {key: value for key, value in body.items() if key not in ("score", "scale")} | {"thumb": "up"}
        return "POST", "/lightning/feedback", mutated(body, rng), _JSON
    if rng.random() < 0.2:
        return "DELETE", f"/api/public/scores/{rng.choice(('s-1', 'none', 'a/b', '%00', '%ff'))}", b"", {}
    body = {"traceId": "ab" * 16, "observationId": "cd" * 8, "name": "helpful", "value": 1, "dataType": "NUMERIC"}
    body |= rng.choice(({}, {"dataType": "CORRECTION", "value": "nine"}, {"metadata": {"user_id": "x"}, "id": "s-1"}))
    body |= rng.choice(({}, {"metadata": {"rollout_id": f"r-{name}", "attempt_id": name, "response_id": 7}}))
    if rng.random() < 0.3:
        return "POST", "/api/public/scores", mutated([body, {**body, "id": "s-2"}], rng), _JSON
    if rng.random() < 0.5:
        events = [{"id": f"e-{rng.randrange(9)}", "type": kind, "body": body} for kind in ("score-create", "sdk-log")]
        return "POST", "/api/public/ingestion", mutated({"batch": events, "metadata": {}}, rng), _JSON
    return "POST", "/api/public/scores", mutated(body, rng), _JSON


def prompt(names: list[str], rng: random.Random) -> Sent:
    """Return a request about versions of prompts: registered, added, proposed, scored, or made live."""
    name = rng.choice(("clerk", "clerk", "cook", f"p{rng.randrange(9)}", "-x", "x" * 80, "%00", "%ff", "a%2fb", "%0a"))
    version = rng.choice((0, 0, 1, 1, 2, rng.randrange(99), -1, 2**63, 10**30))
    text = rng.choice(
        ("Answer with a number.", f"Answer to {names[1]}.", "x" * 65_536, "{name} \u202e \u0000", "é" * 900)
    )
    root = hashlib.sha256(text.encode()).hexdigest()
    path, body = rng.choice(
        (
            ("", {"root": root, "default": rng.choice((text, text, None))}),
            ("/versions", {"text": f"{text[:900]} {rng.randrange(30)}", "parent": version, "reason": "it was vague"}),
            ("/proposals", {"parent": version, "attempts": names, "seed": rng.choice((0, 7, 2**63))}),
            (f"/versions/{version}/scores", {"stage": f"s{rng.randrange(40)}", "mean": 0.61, "tasks": 50}),
            ("/live", {"version": version}),
        )
    )
    return "POST", f"/lightning/prompts/{name}{path}", mutated(body, rng), _JSON


def other_signal(names: list[str], rng: random.Random) -> Sent:
    """Return logs with an evaluation, sent as logs, as metrics, or to embeddings, which this daemon does not serve."""
    name = rng.choice(names)
    score = {"key": semconv.EVALUATION_SCORE, "value": {"doubleValue": rng.choice((1.0, -1e6, 1e308))}}
    record = {
        "eventName": semconv.EVALUATION_EVENT,
        "timeUnixNano": "1700000000000000000",
        "traceId": "ab" * 16,
        "spanId": "cd" * 8,
        "attributes": [
            {"key": semconv.EVALUATION_NAME, "value": {"stringValue": "reward"}},
            score,
            {"key": semconv.ROLLOUT_ID, "value": {"stringValue": f"r-{name}"}},
        ],
    }
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    path = rng.choice(("/v1/logs", "/v1/metrics", f"{base(rng, plain=0.2)}/embeddings"))
    return "POST", path, mutated(logs, rng), rng.choice((_JSON, _JSON, {"content-type": "application/x-protobuf"}))


def form(names: list[str], rng: random.Random) -> Sent:
    """Return a form of the dashboard, nearly always without the mark of a session."""
    fields = {
        "csrf": "0" * 64,
        "policy": "math",
        "version": rng.choice(("1", "999999999999", "x")),
        "rollout": f"r-{names[1]}",
        "reward": rng.choice(("1", "nan", "1e400")),
        "note": rng.choice(("n", "x" * 20_000)),
        "token": "x",
        "back": rng.choice(("/", "//evil", "/\r\nx: y")),
    }
    for name in rng.sample(list(fields), 2):
        fields[name] = _value(names, rng)
    what = ("/do/rollback", "/do/promote", "/do/pause", "/do/resume", "/do/label", "/do/drop", "/login", "/logout")
    raw = urlencode(fields).encode()
    if rng.random() < 0.2:
        raw = bytes_mutated(raw, rng)
    return "POST", rng.choice(what), raw, rng.choice((_FORM, _FORM, _FORM, _JSON, _PLAIN, {}))


def _value(names: list[str], rng: random.Random) -> str:
    return (
        rng.choice(_VALUES) if rng.random() < 0.7 else rng.choice((f"r-{names[1]}", names[1], f"t{rng.randrange(9)}"))
    )
