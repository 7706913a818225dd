"""What a [[judge]] may say; a mistake is one sentence that names it."""

import pytest

from lightning_trainer.config.file import load_config
from lightning_trainer.errors import ConfigError

RUBRIC = 'kind = "rubric"\nmodel = "m"\ncriterion = [{ name = "x", says = "y" }]\n'


@pytest.fixture
def load(tmp_path):
    def load(*judges):
        path = tmp_path / "lightning.toml"
        path.write_text("\n".join(f'[[judge]]\nname = "a"\n{text}' for text in judges))
        return load_config(path).judge

    return load


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('model = "m"', "judge.a.kind is missing"),
        ('kind = "rubrik"', "judge.a.kind = 'rubrik': there are 'rubric', 'group', "),
        (RUBRIC + "scal = [0, 10]", "unknown key 'judge.a.scal'; did you mean 'scale'?"),
        (RUBRIC + "scale = [10, 0]", "write the lowest and the highest score, like [0, 10]"),
        (RUBRIC + "scale = [0, inf]", "write the lowest and the highest score, like [0, 10]"),
        ('kind = "rubric"\nmodel = "m"', "judge.a.criterion is missing"),
        (RUBRIC.replace("]", ', { name = "x", says = "z" }]'), "2 criteria are called 'x'"),
        (RUBRIC + 'api_key = "sk-1"', "unknown key 'judge.a.api_key'; did you mean 'api_key_env'?"),
        (RUBRIC + 'api_key_env = "sk-proj-1"', "judge.a.api_key_env"),
        (RUBRIC + 'base_url = "api.openai.com"', "write a base URL, like https://api.openai.com/v1"),
        (RUBRIC + 'base_url = "https://me:secret@host/v1"', "it holds a user name or a password"),
        (RUBRIC + "budget = { money = 1.0 }", "price_input and price_output"),
        (
            'kind = "agent_credit"\nmodel = "m"\nchecked_by = ["score"]',
            "judge 'a' scores agents or calls, and checked_by compares whole attempts",
        ),
        (
            'kind = "program"\ncommand = ["x"]\nper = "call"\nchecked_by = ["score"]',
            "judge 'a' scores agents or calls, and checked_by compares whole attempts",
        ),
        (
            'kind = "program"\ncommand = ["x"]\nper = "call"\nwhole_group = true',
            "has per = 'call'; leave one of them out",
        ),
        (RUBRIC + 'checked_by = ["score", "a"]', "judge 'a' is checked_by its own verdicts"),
        ('kind = "program"', 'write command = [...] or function = "module:function", one of them'),
        ('kind = "program"\ncommand = ["x"]\nfunction = "a:b"', "one of them"),
        ('kind = "program"\ncommand = []', "has an empty command"),
        ('kind = "program"\ncommand = ["x"]\nworking_dir = "nowhere"', "there is no folder"),
        ('kind = "program"\ncommand = ["x"]\nmodel = "m"', "unknown key 'judge.a.model'; only another kind has it"),
    ],
)
def test_a_mistake_is_one_sentence(load, text, sentence):
    with pytest.raises(ConfigError) as refused:
        load(text)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "sk-" not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ("", "https://api.openai.com/v1"),
        ('api = "anthropic"', "https://api.anthropic.com/v1"),
        ('api = "anthropic"\nbase_url = "https://proxy.test/v1/"', "https://proxy.test/v1"),
    ],
)
def test_without_an_endpoint_the_one_of_the_api_is_asked(load, settings, asked):
    (judge,) = load(RUBRIC + settings)
    assert judge.base_url == asked


@pytest.mark.parametrize(
    "judge", ['kind = "agent_credit"\nmodel = "m"', 'kind = "program"\ncommand = ["x"]\nper = "agent"']
)
def test_a_judge_of_agents_or_calls_cannot_be_corrected(load, judge):
    policy = '[[policy]]\nname = "p"\nagents = ["*"]\nmodel = "random:tiny"\nreward = { a = { correct = true } }'
    with pytest.raises(ConfigError, match="policy 'p' corrects judge 'a', which scores agents or calls"):
        load(f"{judge}\n{policy}")


@pytest.mark.parametrize(
    ("model", "base_url", "kept"),
    [
        ("p@v0", "http://127.0.0.1:8321/v1", {0}),
        ("p@v12", "http://localhost:8321/v1", {12}),
        ("p", "http://127.0.0.1:8321/v1", set()),
        ("p@vX", "http://127.0.0.1:8321/v1", set()),
        ("other@v0", "http://127.0.0.1:8321/v1", set()),
        ("p@v0", "http://127.0.0.1:9999/v1", set()),
        ("p@v0", "https://judges.test/v1", set()),
    ],
)
def test_a_version_that_judges_is_known(tmp_path, model, base_url, kept):
    policy = '[[policy]]\nname = "p"\nagents = ["*"]\nmodel = "random:tiny"\n'
    path = tmp_path / "lightning.toml"
    text = RUBRIC.replace('"m"', f'"{model}"')
    path.write_text(f'{policy}[[judge]]\nname = "a"\nbase_url = "{base_url}"\n{text}')
    config = load_config(path)
    assert config.versions_that_judge(config.only_policy) == kept


def test_names_differ(load):
    with pytest.raises(ConfigError, match="2 judges are called 'a'"):
        load(RUBRIC, RUBRIC)


def test_folders_are_relative_to_the_file(load, tmp_path):
    (judge,) = load('kind = "program"\ncommand = ["x"]')
    assert judge.working_dir == tmp_path
