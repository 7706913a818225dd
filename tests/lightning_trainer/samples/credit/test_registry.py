import pytest

from lightning_trainer.config.policies.credit import CREDIT_SETTINGS, GaeTurnsCredit, GigpoCredit
from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.samples.credit.schemes.critic.turn_rewards import TurnRewards
from lightning_trainer.samples.credit.schemes.discounted import DiscountedReturn
from lightning_trainer.samples.credit.schemes.gigpo import Gigpo
from lightning_trainer.samples.credit.schemes.registry import SCHEMES, credit_scheme
from lightning_trainer.samples.credit.schemes.terminal import TerminalReward

CRITIC = ("gae_turns", "gae_tokens", "gae_bilevel")


def test_a_scheme_is_made_from_its_name_and_settings():
    assert credit_scheme({}) == TerminalReward()
    assert credit_scheme({"scheme": "discounted", "gamma": 0.5}) == DiscountedReturn(0.5)
    assert credit_scheme(GigpoCredit(omega=0.5)) == Gigpo(omega=0.5)


def test_the_configuration_knows_exactly_the_schemes_that_there_are():
    assert set(CREDIT_SETTINGS) == {*SCHEMES, *CRITIC}
    assert {name for name, settings in CREDIT_SETTINGS.items() if settings.needs_values} == set(CRITIC)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_takes_its_settings_and_gives_one_credit_a_transition(name, make_transition, make_trajectory):
    trajectory = make_trajectory(make_transition("1"), make_transition("2", parent_id="1"), reward=1.0)
    (credits_T,) = credit_scheme(CREDIT_SETTINGS[name]())([trajectory])
    assert len(credits_T) == 2
    assert credit_scheme(CREDIT_SETTINGS[name]())([]) == []


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(CreditAssignmentError, match="'guess' is unknown; there are terminal, equal_shares, "):
        credit_scheme({"scheme": "guess"})


@pytest.mark.parametrize("name", CRITIC)
def test_a_scheme_that_needs_a_critic_gives_rewards_until_there_are_values(name):
    assert credit_scheme({"scheme": name}) == TurnRewards()
    assert credit_scheme(GaeTurnsCredit()) == TurnRewards()
