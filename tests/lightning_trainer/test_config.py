"""Every mistake in lightning.toml is named in one sentence; no secret is quoted."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.config.file import load_config, load_usual_config
from lightning_trainer.config.refusals import sentences
from lightning_trainer.errors import ConfigError

POLICY = '[[policy]]\nname = "sql"\nagents = ["sql_writer", "fixer*"]\nmodel = "random:tiny"\n'
TRUSTED = '\n[[policy.trusted]]\nhost = "gpu:8000"\nmodel = "m"\nversion = "unknown"\n'


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
    config = load_config(write(tmp_path, POLICY + '[environments]\nfolder = "envs"'))
    assert (config.daemon.state_dir, config.environments.folder) == (tmp_path / ".lightning", tmp_path / "envs")
    home = load_config(write(tmp_path, '[environments]\nfolder = "~/envs"'))
    assert home.environments.folder == Path.home() / "envs"


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("ours/model", "{folder}/ours/model"),
        ("./ours/missing", "{folder}/ours/missing"),
        ("../elsewhere", "{folder}/../elsewhere"),
        ("/opt/model", "/opt/model"),
        ("owner/name", "owner/name"),
        ("random:tiny", "random:tiny"),
    ],
)
def test_a_model_is_a_folder_beside_the_file_or_a_name(tmp_path, monkeypatch, named, found):
    (tmp_path / "ours" / "model").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = f"""
        [[policy]]
        name = "p"
        agents = ["*"]
        model = {named!r}
        algorithm = {{ kl_loss_coef = 0.1, reference_model = {named!r} }}
        stage = [{{ algorithm = {{ kl_loss_coef = 0.1, reference_model = {named!r} }} }}]
    """
    policy = load_config(write(tmp_path, text)).only_policy
    of_stage = policy.stage[0].algorithm
    assert of_stage is not None
    models = (policy.model, policy.algorithm.reference_model, of_stage.reference_model)
    assert models == (found.format(folder=tmp_path),) * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (POLICY + "groupsize = 3", "unknown key 'policy.sql.groupsize'; did you mean 'group_size'?"),
        (POLICY + "group_size = 1", "policy.sql.group_size = 1: it has to be greater than or equal to 2"),
        (POLICY + "[daemon]\nport = 70000", "daemon.port = 70000"),
        (POLICY + '[daemon]\nhost = "0.0.0.0"\ntoken = "none"', "host '0.0.0.0' is reachable from other machines"),
        (POLICY + "guard = { command = [] }\n", "policy.sql.guard.command: "),
        (
            POLICY + 'guard = { command = ["true"], working_dir = "no" }\n',
            "policy.sql.guard.working_dir = 'no': there is no folder",
        ),
        (POLICY + '[engine]\nchat_template = "no.jinja"', "engine.chat_template = 'no.jinja': there is no file"),
        (POLICY + 'engine.chat_template = "no.jinja"', "policy.sql.engine.chat_template = 'no.jinja': there is no"),
        (POLICY + POLICY, "policy: 2 policies are called 'sql'; give each a name of its own"),
        (
            POLICY + 'credit = { scheme = "guess" }',
            "credit scheme 'guess' is unknown; there are terminal, equal_shares",
        ),
        (
            POLICY + 'credit = { scheme = "discounted", gamma = 2 }',
            "gamma = 2: it has to be less than or equal to 1",
        ),
        (POLICY + "credit = { gamma = 0.5 }", "unknown key 'policy.sql.credit.gamma'; only another kind has it"),
        (POLICY + "credit = 3", "policy.sql.credit = 3: "),
        (POLICY + 'optimizer = { schedule = "cosine" }', "falls over total_steps, which is not set"),
        (
            POLICY + "optimizer = { warmup_steps = 5, total_steps = 5 }",
            "warmup_steps is 5, not below total_steps, 5; make it smaller",
        ),
        (
            POLICY + 'credit = { scheme = "steps" }\nalgorithm = { advantage = "remax" }',
            "'remax' takes the reward of a greedy attempt off that of each attempt, and credit scheme 'steps' gives",
        ),
        (POLICY + 'algorithm = "gspoo"', "there is no algorithm 'gspoo'; there are grpo, dr_grpo"),
        (
            POLICY + 'credit = { scheme = "gigpo" }\nalgorithm = { advantage = "rloo" }',
            "'gigpo' takes off its baseline itself, and algorithm.advantage = 'rloo' would take off another",
        ),
        (
            POLICY
            + 'credit = { scheme = "hierarchical", agent_weights = { "sql*" = 2, sql_writer = 2, planner = 2 } }',
            "agent_weights names 'planner', and the policy claims 'sql_writer', 'fixer*'; name one of its agents",
        ),
        (
            POLICY + "reward = { score = 0.0 }",
            "the weight of 'score' is 0.0; give a number other than 0 between",
        ),
        (POLICY + "reward = { score = nan }", "the weight of 'score' is nan"),
        (POLICY + "reward = {}", "name at least one evaluation, as in {score = 1.0, format = 0.2}"),
        (POLICY + 'group_by = "colour"', "policy.sql.group_by = 'colour': it has to be 'key', 'task' or 'prompt'"),
        (POLICY + "train_recorded = true", "trains calls of engines that [[policy.trusted]] names, and there is none"),
        (POLICY + TRUSTED, 'so its tokens need truncated importance weights; set rollout_is = "token"'),
        (
            POLICY + 'max_staleness = 1\nalgorithm = { rollout_is = "token" }' + TRUSTED,
            "max_staleness = 1 bounds the age of trained tokens, which is unknown for trusted engines with version",
        ),
        (POLICY + TRUSTED.replace('"unknown"', "-1"), "policy.sql.trusted.0.version"),
        (POLICY + TRUSTED.replace("gpu:8000", ":8000"), "it has no host; write host:port"),
        (POLICY + TRUSTED.replace("gpu:8000", "gpu:port"), "write host:port"),
        ("[[policy]", "is not valid TOML"),
        (
            POLICY.replace("[[policy]]", "[policy]"),
            "policy: there can be several, so write [[policy]], with two brackets",
        ),
        ("[[training]]\nthreads = 1", "training: write a table, [training] or {key = value}"),
        (POLICY.replace('["sql_writer", "fixer*"]', '"sql_writer"'), 'write a list, like ["sql_writer"]'),
        ('[training]\nthreads = "two"', "training.threads = 'two': it has to be an integer"),
        (POLICY + "[policy.training]\nthreads = 1", "it belongs in a section of its own, [training]"),
        ("[training]\ngroup_size = 4", "unknown key 'training.group_size'; it belongs in [[policy]]"),
        (
            "[training]\nwarmup_steps = 4",
            "unknown key 'training.warmup_steps'; it belongs in [policy.optimizer] or [policy.algorithm.critic]",
        ),
        (
            POLICY + "optimizer = { learning_rate = 1e-5 }",
            "unknown key 'policy.sql.optimizer.learning_rate'; there are betas, clip_grad, lr,",
        ),
        (POLICY + "optimizer = { betas = [1.5, 0.9] }", "policy.sql.optimizer.betas.0 = 1.5: it has to be less than 1"),
        (POLICY + "optimizer = { lr = inf }", "policy.sql.optimizer.lr = inf: it has to be a finite number"),
        (POLICY + "[[policy.stage]]\nlr = inf", "policy.sql.stage.0.lr = inf: it has to be a finite number"),
        (POLICY + "algorithm = { critic = { lr = inf } }", "critic.lr = inf: it has to be a finite number"),
        (POLICY + "adapter = 16", "unknown key 'policy.sql.adapter'; check its spelling"),
        (POLICY + "reward = 3", "policy.sql.reward = 3: it has to be a string, or write a table, [policy.reward] or {"),
        (POLICY + 'reward = { score = "x" }', "policy.sql.reward.score = 'x': it has to be a number, or write a table"),
        (POLICY + "reward = { score = { wieght = 1 } }", "'policy.sql.reward.score.wieght'; did you mean 'weight'?"),
        (POLICY + 'reward = ""', "policy.sql.reward = '': name the evaluation that is the reward"),
        (POLICY + "[[policy.stage]]\nreward = {}", "policy.sql.stage.0.reward: name at least one evaluation"),
        (
            POLICY + "[[policy.stage]]\nreward = { score = 0 }",
            "policy.sql.stage.0.reward: the weight of 'score' is 0.0; give a number other than 0",
        ),
        ('[feedback]\nquarantine = "soon"', 'unit, like "10m"; there are s, m, h, d, w, y'),
        ('[feedback]\nquarantine = "none"', "feedback.quarantine = 'none': write a number with its unit, like"),
        ('[store]\nretention_time = "soon"', 'like "30d", or "none"; there are'),
        ("[store]\nretention_time = 30", 'like "30d", or "none"; there are'),
        ('[daemon]\ntoken = "' + "ä" * 16 + '"', "daemon.token: a token is printable ASCII, without spaces around it"),
        ('[daemon]\ntoken = " sixteen-or-more "', "daemon.token: a token is printable ASCII, without spaces around it"),
        ('[daemon]\ntoken = "sixteen\\nor-more-of-it"', "daemon.token: a token is printable ASCII, without spaces"),
        ('[engine]\nsleep = "now"', "engine.sleep = 'now': it has to be a boolean or 'auto'"),
        ('[[policy]]\nagents = ["a"]\nmodel = "m"', "policy.0.name is missing"),
        (POLICY.replace('"sql"', '"a\\nb"') + "group_size = 1", "policy.'a\\nb'.group_size = 1"),
    ],
)
def test_a_mistake_is_named_with_its_value(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "x", "name", "kind", "a\nb"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "kind", "model", "agents", "lr", "scheme", "x", "a\nb"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(Config.model_fields)),
    st.sampled_from(sorted(PolicyConfig.model_fields)),
    _VALUES,
)
@example("daemon", "reward", {"a\nb": None})
@example("daemon", "name", "a\nb")
def test_whatever_stands_in_the_file_is_refused_in_one_line_or_read(section, setting, value):
    policy = {"name": "sql", "agents": ["a"], "model": "random:tiny"}
    for document in ({section: value}, {"policy": [{**policy, setting: value}]}):
        try:
            Config.model_validate(document)
        except ValidationError as error:
            said = sentences(error, document, Config)
            assert said
            assert "\n" not in said


def test_remax_is_an_advantage_that_needs_a_baseline(tmp_path):
    (tmp_path / "lightning.toml").write_text(POLICY + 'algorithm = { advantage = "remax" }')
    assert load_config(tmp_path / "lightning.toml").only_policy.algorithm.needs_baseline


def test_a_short_token_is_refused_without_being_quoted(tmp_path):
    with pytest.raises(ConfigError, match=r"daemon\.token") as caught:
        load_config(write(tmp_path, POLICY + '[daemon]\ntoken = "hunter2"'))
    assert "hunter2" not in str(caught.value)


def test_a_file_in_another_encoding_is_one_sentence_and_one_with_a_mark_is_read(tmp_path):
    path = tmp_path / "lightning.toml"
    path.write_bytes((POLICY + "# geändert").encode("latin-1"))
    with pytest.raises(ConfigError, match=r"lightning\.toml is not UTF-8 \(line 5\); save it as UTF-8"):
        load_config(path)
    path.write_bytes(POLICY.encode("utf-8-sig"))
    assert load_config(path).only_policy.name == "sql"


def test_paths_may_begin_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = load_config(
        write(
            tmp_path,
            '[daemon]\nstate_dir = "~/state"\n[store]\njournal = "~/journal"\n[engine]\npython = "vllm/bin/python"\n'
            '[metrics]\nbeside = ["~/other"]\n',
        )
    )
    home = tmp_path / "home"
    assert (config.daemon.state_dir, config.store.journal) == (home / "state", home / "journal")
    assert config.metrics.beside == (home / "other",)
    assert config.engine.python == str(tmp_path / "vllm/bin/python")
    for as_it_is in ("python3.12", "~/vllm/bin/python", "/opt/vllm/bin/python"):
        python = load_config(write(tmp_path, f'[engine]\npython = "{as_it_is}"')).engine.python
        assert python == as_it_is.replace("~", str(home))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*absent\.toml: No such file"):
        load_config(tmp_path / "absent.toml")


def test_credit_groups_and_rewards_are_read(tmp_path):
    policy = load_config(
        write(
            tmp_path,
            POLICY
            + 'group_by = "prompt"\nreward = { score = 1.0, format = 0.2 }\nreward_wait_s = 30\n'
            + '[policy.credit]\nscheme = "hierarchical"\nagent_weights = { fixer_2 = 2, "sql*" = 3 }\n',
        )
    ).only_policy
    assert (policy.group_by, policy.reward_wait_s) == ("prompt", 30.0)
    assert policy.reward_weights == {"score": 1.0, "format": 0.2}
    assert policy.credit.model_dump() == {"scheme": "hierarchical", "agent_weights": {"fixer_2": 2.0, "sql*": 3.0}}


def test_no_estimator_runs_on_a_scheme_that_gives_advantages(tmp_path):
    def estimator(text: str) -> str:
        return load_config(write(tmp_path, POLICY + text)).only_policy.estimator

    assert estimator("") == "grpo"
    assert estimator('algorithm = { advantage = "rloo" }') == "rloo"
    assert estimator('credit = { scheme = "gigpo" }') == "credit"
    assert estimator('credit = { scheme = "gigpo" }\nalgorithm = { advantage = "credit" }') == "credit"


def test_what_someone_else_registered_with_verl_is_left_to_training(tmp_path):
    policy = load_config(write(tmp_path, POLICY + 'algorithm = { advantage = "my_own" }')).only_policy
    assert policy.estimator == "my_own"


def test_of_several_policies_the_first_that_matches_has_the_agent(tmp_path):
    other = '[[policy]]\nname = "rest"\nagents = ["sql_writer", "*"]\nmodel = "random:tiny"\n'
    sql, rest = load_config(write(tmp_path, POLICY + other)).policy

    assert [(sql.claims(name), rest.claims(name)) for name in ("sql_writer", "fixer_2", "planner", None)] == [
        (True, False), (True, False), (False, True), (False, True),
    ]  # fmt: skip
    assert rest.model_copy(update={"group_size": 3}).claims("fixer_2") is False


def test_calls_without_a_name_are_claimed_by_the_first_policy_of_all_agents(tmp_path):
    named = POLICY.replace("agents = ", 'agents = ["?*"] #')
    everybody = [POLICY.replace('"sql"', f'"{name}"').replace("agents = ", 'agents = ["*"] #') for name in "ab"]
    sql, a, b = load_config(write(tmp_path, named + "".join(everybody))).policy
    assert [policy.claims(None) for policy in (sql, a, b)] == [False, True, False]
    assert [a.only(["x", "*"]).claims(None), a.only(["x"]).claims(None), sql.only(["x"]).claims("x")] == [
        True, False, True,
    ]  # fmt: skip
    assert sql.only(["x"]).claims("y") is False


def test_a_policy_is_named_where_there_are_several(tmp_path):
    config = load_config(write(tmp_path, POLICY + POLICY.replace('"sql"', '"rest"')))

    assert config.named_policy("rest").name == "rest"
    for name in (None, "third"):
        with pytest.raises(ConfigError, match="name one of the policies sql, rest"):
            config.named_policy(name)


@pytest.mark.parametrize("text", ["", "[daemon]\nport = 0\n", "[engine]\nthreads = 1\n"])
def test_without_a_policy_it_is_a_configuration_for_recording(tmp_path, text):
    config = load_config(write(tmp_path, text))
    assert config.policy == ()
    with pytest.raises(ConfigError, match=r"there is no policy: the configuration has no \[\[policy\]\]"):
        config.named_policy(None)


def test_without_a_name_the_usual_file_is_read_where_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_usual_config(None).daemon.state_dir == tmp_path / ".lightning"
    (tmp_path / "lightning.toml").write_text(POLICY)
    assert len(load_usual_config(None).policy) == 1
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_usual_config(tmp_path / "absent.toml")


def test_an_unknown_version_is_trained_with_importance_weights(tmp_path):
    text = POLICY + 'algorithm = { rollout_is = "token" }\ntrain_recorded = true' + TRUSTED
    assert load_config(write(tmp_path, text)).only_policy.takes_unknown_versions
    stated = load_config(write(tmp_path, POLICY + TRUSTED.replace('"unknown"', "0"))).only_policy
    assert not stated.takes_unknown_versions
