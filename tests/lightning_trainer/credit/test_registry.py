from typing import get_args

import pytest

from lightning_trainer.config import CreditConfig
from lightning_trainer.credit.discounted import DiscountedReturn
from lightning_trainer.credit.registry import SCHEMES, credit_scheme
from lightning_trainer.credit.terminal import TerminalReward
from lightning_trainer.errors import CreditAssignmentError


def test_a_scheme_is_made_from_its_name_and_settings():
    assert credit_scheme(CreditConfig()) == TerminalReward()
    assert credit_scheme(CreditConfig(scheme="discounted", gamma=0.5)) == DiscountedReturn(0.5)


def test_the_configuration_accepts_exactly_the_names_that_there_are():
    assert set(get_args(CreditConfig.model_fields["scheme"].annotation)) == set(SCHEMES)


def test_an_unknown_name_is_refused_with_the_known_ones():
    unknown = CreditConfig.model_construct(scheme="guess", gamma=1.0)
    with pytest.raises(CreditAssignmentError, match="'guess' is unknown; there are terminal, discounted"):
        credit_scheme(unknown)
