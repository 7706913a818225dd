"""No key survives redaction, nothing else is changed, and no text makes it slow."""

import contextlib
import json
import re
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.redaction import emails, keys
from lightning_instrumentation.redaction.named import is_secret
from lightning_instrumentation.redaction.rules import (
    LONGEST_FOR_FUNCTIONS,
    RedactionError,
    redactor,
)

ALNUM = string.ascii_letters + string.digits


def token(alphabet: str, length: int) -> str:
    return "".join(alphabet[(7 * n + 3) % len(alphabet)] for n in range(length))


SECRETS = [
    "sk-" + token(ALNUM, 48),
    "sk-proj-" + token(ALNUM + "_-", 120),
    "sk-ant-api03-" + token(ALNUM + "-", 90),
    "AKIA" + token(string.ascii_uppercase + string.digits, 16),
    "AIza" + token(ALNUM, 35),
    "ghp_" + token(ALNUM, 36),
    "github_pat_" + token(ALNUM + "_", 60),
    "glpat-" + token(ALNUM, 20),
    "hf_" + token(ALNUM, 34),
    "gsk_" + token(ALNUM, 52),
    "xoxb-" + token(string.digits, 12) + "-" + token(ALNUM, 24),
    "sk_live_" + token(ALNUM, 24),
    "npm_" + token(ALNUM, 36),
    "pypi-" + token(ALNUM, 100),
    ".".join(("eyJ" + token(ALNUM, 30), "eyJ" + token(ALNUM, 60), token(ALNUM, 43))),
    "-----BEGIN RSA PRIVATE KEY-----\n" + token(ALNUM, 64) + "\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n" + token(ALNUM, 64),  # cut off
]
secrets = st.sampled_from(SECRETS)
BEARER = "q" + token(ALNUM + "._~+/", 40)

# What may stand beside a key without being taken for a part of it.
edges = st.text(alphabet=" \n\t.,;:()[]{}\"'<>=\\|é中", min_size=1, max_size=3)
words = st.text(max_size=60)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
every = redactor(["emails"])

LOCAL_MARKS = frozenset("._%+-!#$&'*/=?^`{|}~")
DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,62})\.){1,16}[^\W\d_]{2,24}(?![\w-])")


def addresses_by_hand(text: str) -> str:
    """What ``emails.redact`` is to return: around each "@", one after the other, what can belong to an address.

    Of addresses that stand side by side the first is marked.
    """
    parts: list[str] = []
    copied = 0
    at = text.find("@")
    while at >= 0:
        start = at
        while start > copied and (text[start - 1].isalnum() or text[start - 1] in LOCAL_MARKS):
            start -= 1
        domain = DOMAIN.match(text, at + 1) if start < at else None
        if domain is not None:
            side_by_side = bool(parts) and start == copied
            parts += (text[copied:start], "" if side_by_side else emails.REPLACEMENT)
            copied = domain.end()
        at = text.find("@", copied if domain is not None else at + 1)
    return "".join((*parts, text[copied:]))


@pytest.mark.long
@settings(max_examples=500)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                ["@", ".", "a", "b1", "-", "_", "co", "c", " ", "é", "٣", "²", "中", "a@b.co", "a@b.com.c", "=", '"']
            ),
            st.text(alphabet="ab@.-_1 é", max_size=8),
            st.text(max_size=3),
            st.sampled_from(["x" * 63, "x" * 64, "y" * 25, "a." * 17]),
        ),
        max_size=24,
    ).map("".join)
)
def test_addresses_are_found_as_by_hand(text):
    assert emails.redact(text) == addresses_by_hand(text)


def test_addresses_that_stand_side_by_side_get_one_mark():
    assert emails.redact("a@b.com.c@d.org!") == emails.REPLACEMENT + "!"
    assert emails.redact("a@b.com.c@d") == f"{emails.REPLACEMENT}.c@d"
    text = "a@b.co.a@b.co, " * 3
    assert emails.redact(text) == addresses_by_hand(text)


def test_time_for_addresses_grows_with_the_text_alone():
    for piece in (
        "@",
        "a@",
        "a@a.",
        "a@b.co ",
        "a@b.co.",
        "x@y.zz.",
        "a@b." + "c" * 30,
        "a@" + "b." * 40,
        ".",
        "a" * 99,
    ):
        for size in (50_000, 200_000):
            text = piece * (size // len(piece)) + "@"
            began = time.process_time()
            emails.redact(text)
            # A quarter of a microsecond a character would do; a quadratic way takes minutes.
            assert time.process_time() - began < 2.0


@given(words, edges, secrets, edges, words)
def test_a_key_does_not_survive_wherever_it_stands(before, left, secret, right, after):
    redacted = redactor(())(f"{before}{left}{secret}{right}{after}")
    assert secret not in redacted
    assert keys.REPLACEMENT in redacted


@given(words, edges, secrets, edges, words)
def test_a_key_does_not_survive_in_json_and_json_it_stays(before, left, secret, right, after):
    text = f"{before}{left}{secret}{right}{after}"
    for ascii_only in (True, False):
        document = [{"role": "user", "parts": [{"type": "text", "content": text}]}]
        written = json.dumps(document, ensure_ascii=ascii_only)
        redacted = json.loads(redactor(())(written))
        assert redacted == [{"role": "user", "parts": [{"type": "text", "content": keys.redact(text)}]}]
        assert secret not in str(redacted)


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret[:12])
def test_a_key_behind_an_escaped_character_is_found(secret):
    written = json.dumps([f"\u4e2d{secret}"])
    assert "u4e2d" in written  # its digits stand before the key as if they were a part of the word
    assert json.loads(redactor(())(written)) == [f"\u4e2d{keys.REPLACEMENT}"]


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret[:12])
def test_a_key_in_json_inside_json_is_found(secret):
    inner = json.dumps({"text": f"a line\n{secret}\n"})
    outer = json.dumps([{"arguments": inner}, f"\\n{secret}"])
    assert not any(part in redactor(())(outer) for part in (secret, secret.splitlines()[-1]))


PART = "q7Xk29vLmZ4tRw8bPw3nYc5J"


@pytest.mark.parametrize(
    ("url", "left"),
    [
        (f"postgres://app:{PART}@db/orders", f"postgres://app:{keys.REPLACEMENT}@db/orders"),
        (f"https://{PART}:x@host/a.git", f"https://{keys.REPLACEMENT}:x@host/a.git"),
        (
            f"https://hooks.slack.com/services/T0AB12CD3/B0AB12CD3/{PART}",
            f"https://hooks.slack.com/services/{keys.REPLACEMENT}",
        ),
        (
            f"https://discord.com/api/webhooks/123456789012345678/{PART * 3}",
            f"https://discord.com/api/webhooks/123456789012345678/{keys.REPLACEMENT}",
        ),
        (
            f"https://x.webhook.office.com/webhookb2/{PART}@{PART}/IncomingWebhook/{PART}",
            f"https://x.webhook.office.com/webhookb2/{keys.REPLACEMENT}",
        ),
    ],
    ids=["database", "token", "slack", "discord", "teams"],
)
def test_a_secret_url_is_found_whose_slashes_json_has_escaped(url, left):
    def escaped(text: str) -> str:
        return json.dumps({"at": text}).replace("/", "\\/")  # as PHP writes it

    assert json.loads(redactor(())(escaped(url), payload=True)) == {"at": left}
    nested = json.dumps([{"parts": [{"response": escaped(url) + "\nnext"}]}])
    assert json.loads(redactor(())(nested)) == [{"parts": [{"response": escaped(left) + "\nnext"}]}]


def test_a_bearer_token_is_cut_out_and_its_scheme_stays():
    assert redactor(())(f"Authorization: Bearer {BEARER}, no") == "Authorization: Bearer [redacted key], no"


def _named_secret(document, name: str = "") -> bool:
    """Whether a name in it says that its value, or one in its list, is a secret."""
    if isinstance(document, dict):
        return any(_named_secret(value, key) for key, value in document.items())
    if isinstance(document, list):
        return any(_named_secret(one, name) for one in document)
    return isinstance(document, str) and is_secret(name, document)


@given(documents)
def test_what_holds_no_key_and_no_address_stays_as_it_was_written(document):
    text = json.dumps(document, indent=1)
    # Nor a key by the name that it has.
    if "@" not in text and not keys.found_in(text) and not _named_secret(document):
        assert every(text) is text or json.loads(every(text)) == document
        assert every(text) == text


@given(words)
def test_redacting_twice_changes_nothing_more(text):
    once = every(text)
    assert every(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "task-force-of-twenty-people",
        "risk-adjusted-returns-of-2024",
        "AKIA",
        "sk-short",
        "eyJ is no token",
        "a key: none",
    ],
)
def test_ordinary_words_are_no_keys(text):
    assert redactor(())(text) is text


@pytest.mark.parametrize("address", ["ann@example.com", "a.b+c_d@mail.example.co.uk", "jürgen@exämple.de", "x@a-b.org"])
@given(before=words, after=words)
def test_an_address_does_not_survive_where_it_was_asked_for(address, before, after):
    assert address not in every(f"{before} <{address}> {after}")


def test_addresses_stay_unless_asked_for_and_what_is_none_stays():
    assert redactor(())("ann@example.com") == "ann@example.com"
    for text in ("@", "a @ b", "@app.route", "price@", "user@localhost", "a@b.c1"):
        assert every(text) == text
    assert every("mail ann@example.com.") == f"mail {emails.REPLACEMENT}."


@pytest.mark.parametrize(
    "unit",
    [
        *("sk-", "eyJ-", "eyJ.", "eyJaaaaaaaaaa.", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "Bearer ", "AKIA"),
        *("a@", "@", "a.@a.", "a@" + "b." * 16, "x" * 63 + ".", "\\n", '"', "{", "["),
    ],
)
def test_no_text_is_read_more_than_a_few_times(unit):
    """Quadratic time would take hours here."""
    text = unit * (4_000_000 // len(unit))
    every(text)
    every(f"a@{text}")


def test_a_pattern_and_a_function_of_the_users_see_each_text_alone_and_no_key():
    seen = []

    def shout(text: str) -> str:
        seen.append(text)
        return text.upper()

    redacted = redactor([re.compile("b+"), "regex:z", shout])('{"k": ["abbz", 1]}')
    assert json.loads(redacted) == {"k": ["A[REDACTED][REDACTED]", 1]}
    assert seen == ["a[redacted][redacted]"]


CALL = [
    {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "call_7", "name": "look_up", "arguments": {"id": "7"}}],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_7", "response": "order 7"}]},
]


def test_what_says_how_to_read_a_message_stays_whatever_the_users_rule_says():
    redacted = json.loads(redactor([r"regex:\w+"])(json.dumps(CALL)))
    call, answer = redacted
    kept = {"type": "tool_call", "id": "call_7", "name": "look_up", "arguments": {"id": "[redacted]"}}
    assert call == {"role": "assistant", "parts": [kept]}
    assert answer["parts"][0] == {
        "type": "tool_call_response",
        "id": "call_7",
        "response": "[redacted] [redacted]",
    }


def test_in_arguments_every_text_is_somebodys():
    arguments = json.dumps({"role": "admin of 7", "count": 7, "nested": {"type": "7"}})
    redacted = json.loads(redactor(["regex:[0-9]"])(arguments, payload=True))
    assert redacted == {"role": "admin of [redacted]", "count": 7, "nested": {"type": "[redacted]"}}


@pytest.mark.parametrize("name", ["password", "db_password", "apiKey", "client_secret", "Authorization"])
def test_a_value_without_a_form_is_known_by_its_key_in_json(name):
    value = token(ALNUM, 24)
    document = {"user": "app", name: value, "n": 3}
    assert json.loads(redactor(())(json.dumps(document))) == {"user": "app", name: keys.REPLACEMENT, "n": 3}


@pytest.mark.parametrize(
    "cookie",
    ["JSESSIONID={}", "PHPSESSID={}", "ASP.NET_SessionId={}", "connect.sid=s%3A{}", "sessionid={}", "session={}"],
)
def test_session_cookies_are_found_by_the_names_that_servers_give_them(cookie):
    value = token(ALNUM, 32)
    redacted = redactor(())(f"Cookie: theme=dark; {cookie.format(value)}; lang=en")
    assert value not in redacted
    assert redacted.startswith("Cookie: theme=dark; ")
    assert redacted.endswith("; lang=en")
    name = cookie.partition("=")[0]
    assert json.loads(redactor(())(json.dumps({"cookies": {name: value}}), payload=True)) == {
        "cookies": {name: keys.REPLACEMENT}
    }


@pytest.mark.parametrize("indent", [None, 1])
def test_every_value_of_a_list_has_the_lists_name(indent):
    value = token(ALNUM, 24)
    document = {"status": [200], "X-Api-Key": [value, value, 7], "Accept": ["text/html"]}  # headers, as Go writes them
    left = {**document, "X-Api-Key": [keys.REPLACEMENT, keys.REPLACEMENT, 7]}
    written = json.dumps(document, indent=indent)
    assert json.loads(redactor(())(written, payload=True)) == left
    for text in (json.dumps({"X-Api-Key": [value]}, indent=indent), f"X-Api-Key=['{value}']"):
        assert value not in redactor(())(f"the headers: {text}")


@pytest.mark.parametrize(
    "text",
    [
        "token_url=https://h.example/cb?api_key={}",
        "session_url=https://h/x?token={} answered 401",
        "export AUTH_TOKEN_URL=https://h/oauth/token?client_secret={}",
        "TOKEN_FILE=/run/x:PASSWORD={}",
    ],
)
def test_a_secret_in_the_value_of_another_name_is_found(text):
    assert redactor(())(text.format(PART)) == text.format(keys.REPLACEMENT)


def test_names_in_the_values_of_names_cost_no_more_than_a_text_may():
    text = "token_url=" * 100_000
    began = time.process_time()
    redactor(())(text)
    assert time.process_time() - began < 20


@pytest.mark.parametrize("name", ["next_token", "token_count", "secret_name", "public_key", "monkey"])
def test_a_value_whose_name_only_sounds_like_a_secrets_stays(name):
    text = json.dumps({name: token(ALNUM, 24)})
    assert redactor(())(text) is text


def test_a_text_of_nothing_but_candidates_is_cut_where_too_many_were_judged():
    text = "password=aaaaaaa1 " * 20_000 + SECRETS[0]
    redacted = keys.redact(text)
    assert redacted.endswith(keys.THE_REST)
    assert SECRETS[0] not in redacted


@pytest.mark.parametrize("rule", [lambda text: 1 / 0, lambda text: None, lambda text: text.encode()])
def test_a_rule_that_fails_says_so_and_not_what_the_text_was(rule):
    with pytest.raises(RedactionError) as raised:
        redactor([rule])("my secret")
    assert "secret" not in str(raised.value)


def test_a_text_too_long_for_a_function_of_the_users_is_not_given_to_it():
    with pytest.raises(RedactionError):
        redactor([str.upper])("a" * (LONGEST_FOR_FUNCTIONS + 1))
    assert redactor([r"regex:\d+x"])("1" * (LONGEST_FOR_FUNCTIONS + 1))
    assert redactor(())("a" * (LONGEST_FOR_FUNCTIONS + 1))


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a*)*b", "(a|a)*b", r"(\w+\s?)*$", "a*b", "(.*)(.*)(.*)b"])
def test_no_pattern_of_the_users_takes_long(pattern):
    """With backtracking the first takes for ever for forty characters, and ``a*b`` minutes for these."""
    for rule in (f"regex:{pattern}", re.compile(pattern, re.IGNORECASE)):
        redactor([rule])("a" * 300_000)


@pytest.mark.parametrize("pattern", [r"case \d+", r"\S+@\S+", "(foo|bar)+", r"(\d{1,3}\.){3}\d{1,3}", "(?i)x", "é+"])
def test_patterns_do_what_they_do_in_python(pattern):
    text = "case 12 of a@b, foobar, 10.0.0.7, X x éé"
    assert redactor([f"regex:{pattern}"])(text) == re.sub(pattern, "[redacted]", text)


def test_flags_of_a_compiled_pattern_hold():
    assert redactor([re.compile("^b.c$", re.IGNORECASE | re.MULTILINE | re.DOTALL)])("a\nB\nC") == "a\n[redacted]"


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(?>a+)", "a++", "("])
def test_a_pattern_that_cannot_be_run_in_linear_time_is_refused_with_the_reason(pattern, capfd):
    with pytest.raises(ConfigurationError, match=re.escape(repr(pattern)) + ".* linear time .*give a function"):
        redactor([f"regex:{pattern}"])
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ConfigurationError, match="VERBOSE"):
        redactor([re.compile("a b", re.VERBOSE)])


@pytest.mark.parametrize("rule", ["email", "regex:(", re.compile(b"x"), 7])
def test_a_rule_that_is_none_is_named(rule):
    with pytest.raises(ConfigurationError, match="redact has"):
        redactor([rule])


def test_none_stands_alone_and_takes_nothing_out():
    assert redactor(["none"])(SECRETS[0]) == SECRETS[0]
    with pytest.raises(ConfigurationError, match="stands alone"):
        redactor(["none", "emails"])


def test_nesting_that_cannot_be_walked_is_left_out():
    deep = "[" * 900 + f'"{SECRETS[0]}"' + "]" * 900
    with contextlib.suppress(RedactionError):
        assert SECRETS[0] not in redactor(())(deep)


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_an_image_stays_whole_whatever_its_base64_spells(prefix):
    spelled = f"{prefix}iVBORw0KGgo/AKIAIOSFODNN7EXAMPLE/{'A' * 40}=="
    document = json.dumps([{"type": "blob", "mime_type": "image/png", "content": spelled}])
    assert redactor(["keys", "regex:A{4}"])(document) == document
    assert redactor(["keys"])(spelled) == spelled


def test_what_only_begins_as_an_image_is_text():
    said = "iVBORw0KGgo and my key is AKIAIOSFODNN7ABCDEFG"
    assert "AKIAIOSFODNN7ABCDEFG" not in redactor(["keys"])(said)
