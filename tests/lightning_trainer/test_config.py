"""Every mistake in lightning.toml is named in one sentence; no secret is quoted."""

from pathlib import Path

import pytest

from lightning_trainer.config import load_config
from lightning_trainer.errors import ConfigError

POLICY = '[[policy]]\nname = "sql"\nagents = ["sql_writer", "fixer*"]\nmodel = "random:tiny"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "lightning.toml"
    path.write_text(text)
    return path


def test_a_policy_claims_agents_by_name_and_pattern(tmp_path):
    policy = load_config(write(tmp_path, POLICY)).only_policy

    assert [policy.claims(name) for name in ("sql_writer", "fixer", "fixer_2", "Fixer", "planner", None)] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_relative_paths_are_relative_to_the_file(tmp_path):
    assert load_config(write(tmp_path, POLICY)).daemon.state_dir == tmp_path / ".lightning"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (POLICY + "groupsize = 3", "unknown key 'policy.0.groupsize'; check its spelling"),
        (POLICY + "group_size = 1", "policy.0.group_size = 1: Input should be greater than or equal to 2"),
        (POLICY + "[daemon]\nport = 70000", "daemon.port = 70000"),
        (POLICY + '[daemon]\nhost = "0.0.0.0"', "host '0.0.0.0' is reachable from other machines: set a token"),
        (POLICY + '[engine]\nchat_template = "no.jinja"', "engine.chat_template = 'no.jinja': there is no file"),
        (POLICY + POLICY, "2 policies (sql, sql)"),
        ("[daemon]", "policy is missing"),
        ("[[policy]", "is not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_value(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_short_token_is_refused_without_being_quoted(tmp_path):
    with pytest.raises(ConfigError, match=r"daemon\.token") as caught:
        load_config(write(tmp_path, POLICY + '[daemon]\ntoken = "hunter2"'))
    assert "hunter2" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*absent\.toml: No such file"):
        load_config(tmp_path / "absent.toml")
