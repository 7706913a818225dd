"""What the set-up decides, from facts alone."""

import pytest

ROOT = "/home/someone/lightning trainer"
LIST = "# pinned\nabsl-py==2.5.1\ntorch==2.13.0+cpu\nPyYAML==6.0.3  # a comment\n\n"


def environment(plan, **changes):
    stamp = {"complete": True, "fingerprint": "f", "root": ROOT}
    facts = {"exists": True, "python": "3.11.7", "stamp": stamp, "missing": ()}
    return plan.Environment(**{**facts, **changes})


def action(plan, **changes) -> str:
    return plan.plan_action(environment(plan, **changes), "f", ROOT)[0].value


def test_nothing_changed_is_nothing_to_do(plan):
    assert action(plan) == "nothing"


def test_what_is_there_decides_what_is_done(plan):
    complete = {"complete": True, "fingerprint": "f", "root": ROOT}
    assert action(plan, exists=False, python=None, stamp=None) == "create"
    assert action(plan, python=None) == "create"
    assert action(plan, stamp=None) == "update"
    assert action(plan, stamp=complete | {"fingerprint": "other"}) == "update"
    assert action(plan, missing=("torch==2.13.0+cpu",)) == "update"
    assert action(plan, stamp=complete | {"complete": False}) == "repair"
    assert action(plan, stamp=complete | {"root": "/elsewhere"}) == "create"
    assert action(plan, python="3.12.1") == "create"


def test_anothers_environment_is_never_removed(plan):
    with pytest.raises(plan.SetupError, match=r"Python 3\.12\.1 .* Move it away"):
        action(plan, python="3.12.1", stamp=None)


def test_python_3_1_is_not_python_3_11(plan):
    assert action(plan, python="3.110.0") == "create"


def test_the_fingerprint_sees_every_part_and_where_it_ends(plan):
    prints = {
        plan.fingerprint(b"ab", b"c", "3.11.7"),
        plan.fingerprint(b"a", b"bc", "3.11.7"),
        plan.fingerprint(b"ab", b"c", "3.11.8"),
        plan.fingerprint(b"ab", b"c", None),
    }
    assert len(prints) == 4


def test_the_list_is_read_without_comments(plan):
    assert plan.parse_requirements(LIST) == ["absl-py==2.5.1", "torch==2.13.0+cpu", "PyYAML==6.0.3"]


def test_installed_packages_are_recognized_however_they_are_spelt(plan):
    folders = ["absl_py-2.5.1.dist-info", "torch-2.13.0+cpu.dist-info", "pyyaml-6.0.2.dist-info", "torch", "x.pth"]
    assert plan.missing_requirements(plan.parse_requirements(LIST), folders) == ("PyYAML==6.0.3",)


def test_our_own_list_is_complete_and_pinned(plan, root):
    requirements = plan.parse_requirements((root / plan.REQUIREMENTS).read_text())
    assert len(requirements) > 200
    assert all(line.count("==") == 1 and " " not in line for line in requirements)
    assert plan.torch_requirement(requirements).endswith("+cpu")
    names = {line.partition("==")[0] for line in requirements}
    assert not names & {"torchvision", "torchaudio", "torchcodec"}


@pytest.mark.parametrize(
    ("system", "machine", "libc", "fits"),
    [
        ("Linux", "x86_64", "glibc", True),
        ("Linux", "aarch64", "glibc", False),
        ("Linux", "x86_64", "musl", False),
        ("Darwin", "arm64", "", False),
        ("Windows", "AMD64", "", False),
    ],
)
def test_a_platform_without_wheels_is_refused_in_one_sentence(plan, system, machine, libc, fits):
    refusal = plan.unsupported_platform(system, machine, libc)
    assert (refusal is None) == fits
    if refusal:
        assert f"{system} {machine}" in refusal
        assert "pip install lightning-trainer" in refusal


PIP = """\
:env:.cert='/etc/certs.pem'
:env:.find-links='/wheels /more'
global.extra-index-url='https://other.example/simple'
global.find-links='/wheels'
global.index-url='https://user:secret@mirror.example/simple'
freeze.find-links='/never'
nonsense
"""


def test_uv_is_told_pips_configuration_without_the_extra_indexes(plan):
    told = plan.uv_environment(PIP, {}, uv_has_config_file=False)
    assert told == {
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_DEFAULT_INDEX": "https://user:secret@mirror.example/simple",
        "SSL_CERT_FILE": "/etc/certs.pem",
    }


def test_what_the_user_told_uv_stands(plan):
    own = {"UV_FIND_LINKS": "/mine", "UV_INDEX_URL": "https://mine.example", "SSL_CERT_FILE": "/mine.pem"}
    assert plan.uv_environment(PIP, own, uv_has_config_file=False) == {}
    assert "UV_DEFAULT_INDEX" not in plan.uv_environment(PIP, {}, uv_has_config_file=True)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("error: No space left on device", "Free disk space"),
        ("dns error: failed to lookup address; torch==2.13.0+cpu", "network"),
        ("No solution found: torch==2.13.0+cpu was not found", "CPU build of torch"),
        ("ERROR: No matching distribution found for absl-py==9", "full mirror"),
        ("The virtual environment was not created: ensurepip is not available", "-venv"),
        ("invalid peer certificate: UnknownIssuer", "SSL_CERT_FILE"),
        ("Permission denied (os error 13)", "writable"),
        ("error: Failed to initialize cache at `/root/.cache/uv`: Permission denied", "UV_CACHE_DIR"),
        ("something new", "lines above"),
    ],
)
def test_a_failure_comes_with_what_to_do(plan, printed, said):
    assert said in plan.mend_for(printed)


def test_a_kill_is_called_one(plan):
    assert "memory" in plan.mend_for("Downloading torch", -9)


def test_credentials_are_not_printed(plan):
    line = "UV_DEFAULT_INDEX=https://user:secret@mirror.example/simple uv pip install /a@b torch==1"
    assert plan.redacted(line) == "UV_DEFAULT_INDEX=https://***@mirror.example/simple uv pip install /a@b torch==1"
