"""Where the engine cannot tell its experts, that is one sentence, or what "auto" goes without."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.tokens.routed_experts import enable


def _config(*, experts: bool, refusal: str | None = None) -> Any:
    """What of a ``VllmConfig`` is asked; a real one takes the import of vLLM."""

    def verify() -> None:
        if refusal is not None:
            raise ValueError(refusal)

    return SimpleNamespace(
        aux_output_config=SimpleNamespace(enabled=False, enable_return_routed_experts=False),
        model_config=SimpleNamespace(is_moe=experts, model="/models/dense"),
        _verify_aux_output_compatibility=verify,
    )


@pytest.mark.parametrize("wanted", [True, "auto"])
def test_it_is_on_where_it_can_be(wanted) -> None:
    config = _config(experts=True)
    enable(config, wanted)
    assert config.aux_output_config.enable_return_routed_experts


def test_it_is_off_where_it_is_not_wanted() -> None:
    config = _config(experts=True)
    enable(config, False)
    assert not config.aux_output_config.enable_return_routed_experts


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (_config(experts=False), "the model /models/dense is not a mixture of experts"),
        (_config(experts=True, refusal="no pipelines"), "vLLM refuses: no pipelines"),
    ],
)
def test_where_it_cannot_be_true_refuses_to_start_and_auto_goes_without(config, sentence, caplog) -> None:
    enable(config, "auto")
    assert not config.aux_output_config.enable_return_routed_experts
    assert ("does not tell which experts" in caplog.text) == config.model_config.is_moe
    with pytest.raises(EngineError, match=rf"routed_experts = true: {sentence}; set it to false, or leave it out"):
        enable(config, True)
    assert not config.aux_output_config.enable_return_routed_experts
