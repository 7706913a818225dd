"""Names of span attributes, events, and operations; the only place that defines them.

``gen_ai.*`` follows the OpenTelemetry GenAI semantic conventions (status: Development, so the names are pinned here);
``lightning.*`` is ours. Token ids are packed little-endian int32 bytes and logprobs (nats) packed little-endian float32
bytes, or both are the text of a JSON array (see ``packing``): an integer-array attribute costs 25 times as much to
encode.
"""

from typing import Final

# -- gen_ai: operations ------------------------------------------------------------------------------------------------
OPERATION: Final = "gen_ai.operation.name"
CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"
GENERATE_CONTENT: Final = "generate_content"
INVOKE_AGENT: Final = "invoke_agent"
INVOKE_WORKFLOW: Final = "invoke_workflow"
EXECUTE_TOOL: Final = "execute_tool"

# -- gen_ai: attributes ------------------------------------------------------------------------------------------------
AGENT_NAME: Final = "gen_ai.agent.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_CHOICE_COUNT: Final = "gen_ai.request.choice.count"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
OUTPUT_TYPE: Final = "gen_ai.output.type"
"""``json`` or ``text``, if the request asks for one of them."""
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
HTTP_STATUS: Final = "http.response.status_code"
RETRIES: Final = "http.request.resend_count"
"""How often the client resent a request before the answer that it returned; absent if it did not."""
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# -- gen_ai: the evaluation event (a reward) ---------------------------------------------------------------------------
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
EVALUATION_AGENT: Final = "lightning.evaluation.agent"
"""On the event: the evaluated agent, if it is one agent of the attempt and not all of it."""
FEEDBACK_SOURCE: Final = "lightning.feedback.source_id"
"""On an evaluation's span and event: the source. The evaluation is then feedback, and not a reward until it is settled.
"""
FEEDBACK_KIND: Final = "lightning.feedback.kind"
"""``person`` or ``system``."""
FEEDBACK_CORRECTION: Final = "lightning.feedback.correction"
"""On the event: the answer as the source would have it."""
FEEDBACK_TRACE: Final = "lightning.feedback.trace_id"
"""On the feedback's span: the trace that the feedback is about, if nothing more specific is named."""
FEEDBACK_TAKEN_BACK: Final = "lightning.feedback.taken_back"
"""On the event: True if the source takes back its feedback of this name on the same answer."""
FEEDBACK_SOURCES: Final = "lightning.feedback.sources"
"""On the span of a reward made from feedback: its number of sources."""
JUDGE_NAME: Final = "lightning.judge.name"
"""On an evaluation's span: the judge that gave it. The attributes below describe the judge and its answer."""
JUDGE_KIND: Final = "lightning.judge.kind"
JUDGE_MODEL: Final = "lightning.judge.model"
"""The model that was asked, or the program that ran."""
JUDGE_FINGERPRINT: Final = "lightning.judge.fingerprint"
"""Equal for judges whose settings (model, words, scale) give the same verdicts."""
JUDGE_PLACE: Final = "lightning.judge.place"
"""Index of the evaluated attempt among those judged together."""
JUDGE_CALL: Final = "lightning.judge.call"
"""Index of the evaluated call in the attempt, if one call was evaluated."""
JUDGE_REMEMBERED: Final = "lightning.judge.remembered"
"""Whether an earlier answer of the judge was used again."""
JUDGE_CALLS: Final = "lightning.judge.calls"
"""On a judge's own span: the number of calls for a question; the span also has the tokens of all these calls."""

LABELED_BY: Final = "lightning.labeled_by"
"""On an evaluation's span: the person who gave it, or ``a person``."""

# -- lightning: identity, on every span at start, and W3C baggage to hosts that the user named --------------------
ROLLOUT_ID: Final = "lightning.rollout.id"
ATTEMPT_ID: Final = "lightning.attempt.id"
TASK_ID: Final = "lightning.task.id"
GROUP_ID: Final = "lightning.group.id"
"""Attempts that are compared with each other; the task id by default."""
ROLLOUT_MODE: Final = "lightning.rollout.mode"
"""``train`` (default), ``evaluate``, ``baseline`` or ``record``: only the first is ever trained by the daemon."""
ROLLOUT_ROOT: Final = "lightning.rollout.root"
"""True on the one span that covers a whole attempt; its end marks the end of the attempt."""
ROLLOUT_INPUT: Final = "lightning.rollout.input"
"""The task's input, as JSON text, on the root span if the user gave it."""
ROLLOUT_POLICIES: Final = "lightning.rollout.policies"
"""On the root span: names of the policies that the attempt is made for, whether or not they answer a call in it."""
AGENT_SOURCE: Final = "lightning.agent.source"
"""How the agent name was recognized: decorator, langchain, langgraph, autogen, openai-agents, crewai, pydantic-ai,
baggage ..."""
SEQUENCE: Final = "lightning.sequence.id"
"""One process's spans of one attempt are numbered from 1 in the order of their starts: this is the numbering's id."""
SEQUENCE_NUMBER: Final = "lightning.sequence.number"
SEQUENCE_STARTED: Final = "lightning.sequence.started"
"""How many spans of the numbering had started when this span ended, itself included: that many must arrive."""
BAGGAGE_KEYS: Final = (ROLLOUT_ID, ATTEMPT_ID, TASK_ID, GROUP_ID, ROLLOUT_MODE, AGENT_NAME)

STATE: Final = "lightning.state"
"""On a model call: the state of the environment in which it was made, any text; equal texts are the same state."""

PROMPT_NAME: Final = "gen_ai.prompt.name"
PROMPT_VERSION: Final = "lightning.prompt.version"
"""On a span ``prompt NAME``: the version of a named prompt that a program got, an integer."""

METADATA: Final = "lightning.metadata."
"""Prefix of a rollout's user metadata: text that our code does not interpret."""
NOTE: Final = METADATA + "note"
"""A person's note (``lightning-trainer label --note``), which ``explain`` and the dashboard show."""

GATEWAY_BAGGAGE_KEYS: Final = (
    ROLLOUT_ID,
    ATTEMPT_ID,
    ROLLOUT_MODE,
    AGENT_NAME,
    SEQUENCE,
    SEQUENCE_STARTED,
    STATE,
    TASK_ID,
    GROUP_ID,
)
"""What the gateway copies to its record: identity, the number of spans to expect from the caller, and the state. They
are sent in this order while there is room: those that the root span has, too, come last."""

# -- content: redacted, and left out if content is not captured ------------------------------------------------------
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
CONTENT_KEYS: Final = frozenset(
    {
        INPUT_MESSAGES,
        OUTPUT_MESSAGES,
        SYSTEM_INSTRUCTIONS,
        TOOL_DEFINITIONS,
        TOOL_CALL_ARGUMENTS,
        TOOL_CALL_RESULT,
        ROLLOUT_INPUT,
        EVALUATION_EXPLANATION,
        NOTE,
        FEEDBACK_CORRECTION,
        EXCEPTION_MESSAGE,
        EXCEPTION_STACKTRACE,
    }
)
"""Attributes of spans and events. A new attribute with text of the user's or the model's must be added here."""
PAYLOAD_KEYS: Final = frozenset({TOOL_CALL_ARGUMENTS, TOOL_CALL_RESULT, ROLLOUT_INPUT})
"""The subset that may be JSON of the user's own making, in which ``role`` or ``id`` can mean anything."""

# -- lightning: sampling parameters that the conventions have no name for ----------------------------------------------
REQUEST_MIN_P: Final = "lightning.request.min_p"
REQUEST_REPETITION_PENALTY: Final = "lightning.request.repetition_penalty"
REQUEST_LOGIT_BIAS: Final = "lightning.request.logit_bias"
"""JSON text, as sent."""
REQUEST_STRUCTURED_OUTPUT: Final = "lightning.request.structured_output"
"""json_schema, json_object, regex, choice, grammar, structural_tag ...: the source of a grammar."""
REQUEST_STRUCTURED_OUTPUT_HASH: Final = "lightning.request.structured_output.sha256"
"""Hash of the schema or grammar, which is not recorded itself."""
REQUEST_TOOL_CHOICE: Final = "lightning.request.tool_choice"
"""``required`` if the answer must be a call of any tool, ``named`` if it must be a call of a certain tool."""
REQUEST_MIN_TOKENS: Final = "lightning.request.min_tokens"
REQUEST_IGNORE_EOS: Final = "lightning.request.ignore_eos"
REQUEST_STOP_TOKEN_IDS: Final = "lightning.request.stop_token_ids"
REQUEST_ALLOWED_TOKEN_IDS: Final = "lightning.request.allowed_token_ids"
"""The ids, or their number and hash."""
REQUEST_BAD_WORDS: Final = "lightning.request.bad_words"
"""Their number and hash."""
REQUEST_UNKNOWN: Final = "lightning.request.unknown"
"""Names of other parameters that change the sampling distribution in ways that cannot be recomputed."""
SUPPORT_KNOWN: Final = "lightning.response.support_known"
"""True if the engine reports supports; a choice without one was then sampled from the whole vocabulary."""

# -- lightning: exact tokens -------------------------------------------------------------------------------------------
PROMPT_TOKEN_IDS: Final = "lightning.prompt.token_ids"
NO_TOKEN_IDS: Final = "lightning.host.no_token_ids"
"""True on a call to a trusted host whose answer had no token ids."""
PROMPT_KEPT_TOKENS: Final = "lightning.prompt.kept_tokens"
"""Number of leading prompt tokens that the engine kept as sampled, because tokenizing the text would give others."""
CHOICES: Final = "lightning.response.choices"
"""Number of choices in the response; choice ``i`` has the two attributes below."""
POLICY: Final = "lightning.policy.name"
POLICY_VERSION: Final = "lightning.policy.version"
STREAM_COMPLETE: Final = "lightning.stream.complete"
"""False on the span of a stream that ended before its last chunk."""
CALL_ABANDONED: Final = "lightning.call.abandoned"
"""True on a span below a gateway's record: the caller never received the end of that answer, so it is interrupted."""

API: Final = "lightning.api"
"""Wire format of a model call: chat_completions, completions, responses, messages, gemini, ollama_chat ..."""
CAPTURED_BY: Final = "lightning.captured_by"
"""The library whose hook recorded a model call: openai, httpx, httpx2, requests, aiohttp or botocore."""
OUTER_SPAN: Final = "lightning.outer_span"
"""On a model call: the span of another tracer in this process that encloses it, as ``TRACE_ID-SPAN_ID`` in hex. If both
traces reach one store, this shows that both record the same call."""

# -- lightning: a call that was routed to the gateway; its own attributes have its destination
# --------------------------
ROUTE_POLICY: Final = "lightning.route.policy"
"""The policy that claims the agent, so that the call was sent to the gateway."""
ROUTE_FROM_URL: Final = "lightning.route.from.url"
"""Where the call would have gone; without query, user name, and password."""
ROUTE_FROM_MODEL: Final = "lightning.route.from.model"
"""The model that the caller named."""
ROUTE_FELL_BACK: Final = "lightning.route.fell_back"
"""True if the daemon was down and the call went to the caller's own host."""
ROUTE_LATE: Final = "lightning.route.late"
"""True if the daemon had not said yet whose calls are routed, and the call went to the caller's own host."""

LOSSES_SPAN: Final = "lightning.not_captured"
"""Name of the span by which a process reports what it could not capture; its newest report includes all earlier ones.
"""
LOSSES: Final = "lightning.not_captured.counts"
"""On that span: JSON text, counts by reason since the process began."""
PROCESS_ID: Final = "lightning.process.id"
"""On that span: random, one per process, because pids are reused."""

GATEWAY_SCOPE: Final = "lightning.gateway"
GATEWAY_NOTE_SCOPE: Final = "lightning.gateway.notes"
"""Scope of the gateway's later notes on its records; they are not calls."""
CLIENT_SCOPE: Final = "lightning.instrumentation"


def response_token_ids(choice: int) -> str:
    """Return the name of the attribute with the sampled ids of one choice."""
    return f"lightning.response.{choice}.token_ids"


def response_logprobs(choice: int) -> str:
    """Return the name of the attribute with the sampled tokens' logprobs of one choice, in nats."""
    return f"lightning.response.{choice}.logprobs"


def response_support(choice: int) -> str:
    """Return the name of the attribute with the tokens' supports of one choice (``lightning_trainer.sampling``)."""
    return f"lightning.response.{choice}.support"


def response_routed_experts(choice: int) -> str:
    """Return the name of the attribute with the experts of prompt and response (``lightning_trainer.experts``)."""
    return f"lightning.response.{choice}.routed_experts"


def response_support_unknown(choice: int) -> str:
    """Return the name of the attribute that says why the supports of one choice are unknown."""
    return f"lightning.response.{choice}.support_unknown"
