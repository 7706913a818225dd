"""Why a sampled token is trained or not: every reason that the ledger knows, each with one sentence for people."""

from enum import StrEnum


class Reason(StrEnum):
    """A reason: its value goes into the ledger and the store, its ``explanation`` is what a person reads."""

    explanation: str

    def __new__(cls, value: str, explanation: str) -> "Reason":
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.explanation = explanation
        return reason

    # trained
    SAMPLED = "sampled", "The policy sampled these tokens and they are trained."

    # trained, or written to a file to be trained
    DEMONSTRATED = "demonstrated", "A demonstration for supervised fine-tuning."
    PREFERENCE = "preference", "The chosen or the rejected answer of a preference pair."

    # deduplicated
    DELIVERED_TWICE = "delivered_twice", "The same response was recorded more than once; the fullest record counts."

    # masked
    ZERO_VARIANCE_GROUP = (
        "zero_variance_group",
        "All attempts of the group earned the same, so none is better than another and there is nothing to learn.",
    )
    LOW_VARIANCE_GROUP = (
        "low_variance_group",
        "Other groups differ more in what their attempts earned: of the step (keep_most_uncertain), or of the steps "
        "before it (deviation_floor).",
    )

    NO_CHOICE = (
        "no_choice",
        "A grammar, a forced tool, top_p or the like left only this token: its probability is 1 whatever the weights, "
        "so it teaches nothing.",
    )

    TRUNCATED = (
        "truncated",
        "The limit of tokens (max_tokens) ended the response: mask_truncated leaves such out, and who imitates the "
        "words learns to stop in mid-sentence.",
    )

    NOT_PICKED = (
        "not_picked",
        "Another attempt of the group earned more (or, of a pair, one earned less), and only that is imitated.",
    )

    # dropped: whose call it is
    NO_AGENT = (
        "no_agent",
        'The call carries no agent name, and only a policy with agents = ["*"] claims such calls.',
    )
    NOT_SELECTED = "not_selected", "The policy does not claim this agent; the call is traced and never trained."
    OTHER_POLICY = "other_policy", "Another policy sampled these tokens."
    FIDELITY_TOO_LOW = (
        "fidelity_too_low",
        "Fidelity too low: only the text of the call is known, and reinforcement learning needs the ids that the "
        "engine sampled; let the agent's calls go through the gateway.",
    )
    RETOKENIZED = (
        "retokenised",
        "The ids were made again from the words, so the model may have sampled others; reinforcement learning takes "
        "them only with allow_retokenized = true.",
    )
    NO_POLICY_VERSION = (
        "no_policy_version",
        "It is not known which policy version sampled these tokens: the call did not go through the gateway. Where its "
        "engine serves the policy's weights, [[policy.trusted]] says which version.",
    )
    STALE = (
        "stale",
        "More versions than max_staleness have gone live since the one that sampled these tokens, or a rollback took "
        "that one back.",
    )
    NO_ATTEMPT = "no_attempt", "The call belongs to no attempt: it was made outside a rollout."
    OTHER_ROLLOUT = (
        "other_rollout",
        "Its attempt has the id of another rollout's attempt, whose reward is not its own; give every attempt an id "
        "that no other rollout's has.",
    )
    UNKNOWN_ATTEMPT = "unknown_attempt", "The call names an attempt that is not part of this batch."
    EVALUATION = "evaluation", "The attempt is an evaluation; evaluations are never trained."
    BASELINE = "baseline", "The attempt is the baseline of its group: its reward is used, and it is never trained."
    RECORDED = "recorded", "The attempt was recorded for a dataset: `build` takes it, and no step does."
    RETRIED = "retried", "The attempt failed, and another one was made in its place."
    SHADOW = "shadow", "A candidate answered alongside the live version, to be compared with it."
    TAKEN_OUT = "dropped", "A user took the attempt out of what is trained (`lightning-trainer drop`)."
    FAILED_ATTEMPT = "failed_attempt", "The attempt's code raised, and failed attempts are not wanted."
    ATTEMPT_RUNNING = "attempt_running", "The attempt has not ended yet."

    # dropped: what was recorded of the call
    NO_TOKEN_IDS = "no_token_ids", "No token ids were recorded for the call."
    EMPTY_PROMPT = "empty_prompt", "The prompt has no tokens; the first sampled token would have no context."
    EMPTY_RESPONSE = "empty_response", "The response has no tokens."
    NO_LOGPROBS = "no_logprobs", "The engine gave no log-probabilities of the sampled tokens."
    LOGPROB_COUNT = "logprob_count", "There are more or fewer log-probabilities than sampled tokens."
    LOGPROB_NOT_FINITE = "logprob_not_finite", "A log-probability is NaN or infinite; no sampled token has such a one."
    NOT_IN_VOCABULARY = (
        "not_in_vocabulary",
        "A token id is beyond the vocabulary of the policy's model: another model's, or a damaged record.",
    )
    INCOMPLETE_STREAM = (
        "incomplete_stream",
        "The stream ended early, or the caller hung up: the agent did not act on the whole response, so the reward is "
        "not about it.",
    )
    SAMPLING_UNKNOWN = (
        "sampling_unknown",
        "It is not known what these tokens were drawn from (top_p, a grammar or the like took part, and the engine did "
        "not say what it left), so the trainer cannot compute their probabilities as the engine did.",
    )
    NON_TEXT = (
        "non_text",
        'The prompt has parts that are not text (images, audio); with non_text = "keep" a vision-language model is '
        "trained on images.",
    )
    MEDIA_MISSING = (
        "media_missing",
        "An image of the prompt is not in the store: it was larger than media_size_each, had to make room "
        "(media_size), or is only an address.",
    )
    PLACEHOLDER = (
        "placeholder",
        "A token that stands for a piece of an image was sampled, or is in a prompt without images: the model would "
        "look for an image there.",
    )

    # dropped: what can be made of the call
    QUARANTINED = "quarantined", "Working on its group ended in an error, so the group is set aside; the others go on."
    NO_REWARD = "no_reward", "The credit scheme needs a reward that is missing; missing is not zero."
    OVER_LENGTH = "over_length", "Prompt and response together are longer than max_sample_tokens."
    CUT = "cut", "These tokens of a response lie beyond max_sample_tokens; the ones before them are trained."
    NO_BASELINE = "no_baseline", "The estimator needs the reward of a baseline attempt of the group, and there is none."
    GROUP_TOO_SMALL = "group_too_small", "Fewer than two attempts of the group can be compared."
    NO_PEERS = (
        "no_peers",
        "No other attempt of the group has a call that this one could be compared with (the same agent and turn).",
    )
    GROUP_MIXED_TASKS = "group_mixed_tasks", "The attempts of the group are of different tasks."
    GROUP_MIXED_AGENTS = (
        "group_mixed_agents",
        "Different agents took part in the attempts of the group, and credit depends on who did.",
    )

    # dropped: what a demonstration or a preference pair can be made of
    LOW_REWARD = "low_reward", "The reward is below the least that was asked of a demonstration."
    EDITED = "edited", "A user edited the answer, and the edit is the demonstration."
    NO_WORDS = "no_words", "The words of the call were not recorded, or cannot be written as text (an image)."
    NO_PAIR = (
        "no_pair",
        "No other answer of the same agent to the same prompt earned more or less, or two others differ by more, or "
        "the best and the worst are the same.",
    )
