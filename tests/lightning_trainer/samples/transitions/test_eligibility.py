import math

import pytest

from lightning_trainer.samples.transitions.eligibility import KeptImages, reason_against
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import AttemptState, Fidelity, Media, RolloutMode


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"agent": None}, Reason.NO_AGENT),
        ({"agent": "judge"}, Reason.NOT_SELECTED),
        ({"policy": "sql"}, Reason.OTHER_POLICY),
        ({"policy": None}, Reason.NO_POLICY_VERSION),
        ({"fidelity": Fidelity.TEXT_ONLY, "policy": None}, Reason.FIDELITY_TOO_LOW),
        ({"fidelity": Fidelity.TEXT_ONLY}, Reason.FIDELITY_TOO_LOW),
        ({"fidelity": Fidelity.TEXT_ONLY, "complete": False}, Reason.INCOMPLETE_STREAM),
        ({"fidelity": Fidelity.TEXT_ONLY, "complete": False, "policy": None}, Reason.FIDELITY_TOO_LOW),
        ({"fidelity": Fidelity.TEXT_ONLY, "agent": "judge"}, Reason.NOT_SELECTED),
        ({"fidelity": Fidelity.VERIFIED}, Reason.RETOKENIZED),
        ({"policy_version": None}, Reason.NO_POLICY_VERSION),
        ({"attempt_id": None}, Reason.NO_ATTEMPT),
        ({"attempt_id": "elsewhere"}, Reason.UNKNOWN_ATTEMPT),
        ({"rollout_id": "rollout-a2"}, Reason.OTHER_ROLLOUT),
        ({"rollout_id": None}, None),
        ({"attempt_id": "evaluation"}, Reason.EVALUATION),
        ({"attempt_id": "running"}, Reason.ATTEMPT_RUNNING),
        ({"attempt_id": "failed"}, None),
        ({"prompt_ids": (), "response_ids": ()}, Reason.NO_TOKEN_IDS),
        ({"prompt_ids": ()}, Reason.EMPTY_PROMPT),
        ({"response_ids": (), "behavior_logprobs": ()}, Reason.EMPTY_RESPONSE),
        ({"response_ids": (), "behavior_logprobs": (), "complete": False}, Reason.INCOMPLETE_STREAM),
        ({"behavior_logprobs": None}, Reason.NO_LOGPROBS),
        ({"behavior_logprobs": (-1.0,)}, Reason.LOGPROB_COUNT),
        ({"behavior_logprobs": (-1.0, math.nan)}, Reason.LOGPROB_NOT_FINITE),
        ({"behavior_logprobs": (-1.0, -math.inf)}, Reason.LOGPROB_NOT_FINITE),
        ({"complete": False}, Reason.INCOMPLETE_STREAM),
        ({"sampling_unknown": "top_p = 0.5"}, Reason.SAMPLING_UNKNOWN),
        ({"sampling_unknown": "top_p = 0.5", "complete": False}, Reason.INCOMPLETE_STREAM),
        ({"agent": "judge", "prompt_ids": (), "complete": False}, Reason.NOT_SELECTED),
    ],
)
def test_a_call_is_refused_for_its_first_reason(make_call, make_attempt, make_policy, changes, reason):
    attempts = {
        attempt.attempt_id: attempt
        for attempt in (
            make_attempt("a1"),
            make_attempt("evaluation", mode=RolloutMode.EVALUATE),
            make_attempt("running", state=AttemptState.RUNNING, ended_ns=None),
            make_attempt("failed", state=AttemptState.FAILED, error="ValueError"),
        )
    }
    assert reason_against(make_call("s", **changes), make_policy(), attempts) is reason


CAT, DOG = Media("image", "sha256:cat", "image/png"), Media("image", "sha256:dog", "image/png")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"media": (CAT,), "prompt_ids": (1, 99, 2)}, None),
        ({"media": (CAT, DOG), "prompt_ids": (1, 99, 99)}, Reason.MEDIA_MISSING),
        ({"media": (Media("image", "https://host/cat.png"),), "prompt_ids": (1, 99)}, Reason.MEDIA_MISSING),
        ({"prompt_ids": (1, 99, 2)}, Reason.PLACEHOLDER),
        ({"media": (CAT,), "response_ids": (5, 99)}, Reason.PLACEHOLDER),
    ],
)
def test_of_a_model_that_sees_every_image_must_be_there(make_call, make_attempt, make_policy, changes, reason):
    changes = {"behavior_logprobs": (-1.0, -1.0), "response_ids": (5, 6), **changes}
    images, attempts = KeptImages(99, {CAT.uri}), {"a1": make_attempt("a1")}
    assert reason_against(make_call("s", **changes), make_policy(non_text="keep"), attempts, images=images) is reason


def test_images_are_dropped_unless_the_policy_keeps_them(make_call, make_attempt, make_policy):
    images, attempts = KeptImages(99, {CAT.uri}), {"a1": make_attempt("a1")}
    assert reason_against(make_call("s", media=(CAT,)), make_policy(), attempts, images=images) is Reason.NON_TEXT


def test_every_reason_explains_itself_in_a_sentence():
    for reason in Reason:
        assert reason.explanation.endswith("."), reason
        assert str(reason) == reason.value
    assert len({reason.explanation for reason in Reason}) == len(Reason)


@pytest.mark.parametrize("name", ["allow_retokenized", "allow_retokenised"])
def test_ids_made_again_are_trained_where_the_policy_says_so(make_call, make_attempt, make_policy, name):
    allowing = make_policy(**{name: True})
    attempts = {"a1": make_attempt()}
    scored = make_call("s", fidelity=Fidelity.VERIFIED)
    assert reason_against(scored, allowing, attempts) is None
    # Without scores there is nothing to correct with.
    unscored = make_call("s", fidelity=Fidelity.VERIFIED, behavior_logprobs=None)
    assert reason_against(unscored, allowing, attempts) is Reason.NO_LOGPROBS


def test_what_is_imitated_needs_no_distribution(make_call, make_attempt, make_policy):
    imitating = make_policy(algorithm="sft")
    assert imitating.algorithm.objective != "rl"
    call = make_call("s", sampling_unknown="beam_search")
    assert reason_against(call, imitating, {"a1": make_attempt("a1")}) is None
