"""Names of span attributes, events and operations; the only place where they are written down.

``gen_ai.*`` follows the OpenTelemetry GenAI semantic conventions (status: Development, so the names are pinned here);
``lightning.*`` is ours. Token ids travel as packed little-endian int32 bytes and log-probabilities (nats) as packed
little-endian float32 bytes, or both as the text of a JSON array (see ``packing``): an integer-array attribute costs 25
times as much to encode.
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
"""``json`` or ``text``, where the request asks for one of them."""
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
"""How often the client sent a request again before the answer that it returned; absent where it did not."""
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# -- gen_ai: the evaluation event (a reward) ---------------------------------------------------------------------------
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
EVALUATION_AGENT: Final = "lightning.evaluation.agent"
"""On the event: the agent that is evaluated, where it is one agent of the attempt and not all of it."""
FEEDBACK_SOURCE: Final = "lightning.feedback.source_id"
"""On an evaluation's span and event: who says so. It is feedback then, and no reward before it has been settled."""
FEEDBACK_KIND: Final = "lightning.feedback.kind"
"""``person`` or ``system``."""
FEEDBACK_CORRECTION: Final = "lightning.feedback.correction"
"""On the event: the answer as the source would have it."""
FEEDBACK_TRACE: Final = "lightning.feedback.trace_id"
"""On its span: the trace that it is about, where nothing more exact is named."""
FEEDBACK_TAKEN_BACK: Final = "lightning.feedback.taken_back"
"""On the event: True where the source takes back what it said of this under this name."""
FEEDBACK_SOURCES: Final = "lightning.feedback.sources"
"""On the span of a reward that was made of feedback: of how many sources."""
JUDGE_NAME: Final = "lightning.judge.name"
"""On an evaluation's span: the judge that gave it, and those below."""
JUDGE_KIND: Final = "lightning.judge.kind"
JUDGE_MODEL: Final = "lightning.judge.model"
"""The model that was asked, or the program that ran."""
JUDGE_PLACE: Final = "lightning.judge.place"
"""Which of the attempts that were judged together it is about, from 0, ordered by what was judged."""
JUDGE_CALL: Final = "lightning.judge.call"
"""Which of the attempt's calls, from 0, where it is about one."""
JUDGE_CALLS: Final = "lightning.judge.calls"
"""On a judge's own span: how many calls a question took; with it stand the tokens of all of them."""

LABELED_BY: Final = "lightning.labeled_by"
"""On an evaluation's span: the person who gave it, or ``a person``."""

# -- lightning: identity, on every span at start, and W3C baggage to hosts that the user named --------------------
ROLLOUT_ID: Final = "lightning.rollout.id"
ATTEMPT_ID: Final = "lightning.attempt.id"
TASK_ID: Final = "lightning.task.id"
GROUP_ID: Final = "lightning.group.id"
"""Attempts that are compared with each other; the task id unless the user says otherwise."""
ROLLOUT_MODE: Final = "lightning.rollout.mode"
"""``train`` (default) or ``evaluate``: an evaluation is recorded and never trained."""
ROLLOUT_ROOT: Final = "lightning.rollout.root"
"""True on the one span that covers a whole attempt; its end says that the attempt has ended."""
ROLLOUT_INPUT: Final = "lightning.rollout.input"
"""What the task asked, as JSON text, on the root span where the user gave it."""
AGENT_SOURCE: Final = "lightning.agent.source"
"""How the agent name was recognized: decorator, langchain, langgraph, autogen, openai-agents, crewai, baggage ..."""
SEQUENCE: Final = "lightning.sequence.id"
"""One process's spans of one attempt are numbered from 1 in the order of their starts: this is which numbering."""
SEQUENCE_NUMBER: Final = "lightning.sequence.number"
SEQUENCE_STARTED: Final = "lightning.sequence.started"
"""How many spans of the numbering had started when this one ended, itself included: so many have to arrive."""
BAGGAGE_KEYS: Final = (ROLLOUT_ID, ATTEMPT_ID, TASK_ID, GROUP_ID, ROLLOUT_MODE, AGENT_NAME)

STATE: Final = "lightning.state"
"""On a model call: the state of the environment that it was made in, any text; equal texts are the same state."""

METADATA: Final = "lightning.metadata."
"""Before the name of what someone noted of a rollout: text that nothing of ours reads."""
NOTE: Final = METADATA + "note"
"""What a person noted of it (``lightning-trainer label --note``), which ``explain`` and the dashboard show."""

GATEWAY_BAGGAGE_KEYS: Final = (*BAGGAGE_KEYS, SEQUENCE, SEQUENCE_STARTED, STATE)
"""What the gateway copies to its record: identity, how many spans of the caller's it has to expect, and the state."""

# -- what was said: redacted, and left out where content is not captured ---------------------------------------------
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
"""Attributes of spans and events. A new attribute that holds text of the user's or the model's belongs in here."""
PAYLOAD_KEYS: Final = frozenset({TOOL_CALL_ARGUMENTS, TOOL_CALL_RESULT, ROLLOUT_INPUT})
"""Of these, the ones that may be JSON of the user's own making, in which ``role`` or ``id`` can mean anything."""

# -- lightning: what the conventions have no name for of what a request asks of the sampler ---------------------------
REQUEST_MIN_P: Final = "lightning.request.min_p"
REQUEST_REPETITION_PENALTY: Final = "lightning.request.repetition_penalty"
REQUEST_LOGIT_BIAS: Final = "lightning.request.logit_bias"
"""JSON text, as it was sent."""
REQUEST_STRUCTURED_OUTPUT: Final = "lightning.request.structured_output"
"""json_schema, json_object, regex, choice, grammar, structural_tag ...: what a grammar was made from."""
REQUEST_STRUCTURED_OUTPUT_HASH: Final = "lightning.request.structured_output.sha256"
"""Of the schema or grammar itself, which is not recorded."""
REQUEST_TOOL_CHOICE: Final = "lightning.request.tool_choice"
"""``required``, or ``named``: the answer has to be a call, of any tool or of this one."""
REQUEST_MIN_TOKENS: Final = "lightning.request.min_tokens"
REQUEST_IGNORE_EOS: Final = "lightning.request.ignore_eos"
REQUEST_STOP_TOKEN_IDS: Final = "lightning.request.stop_token_ids"
REQUEST_ALLOWED_TOKEN_IDS: Final = "lightning.request.allowed_token_ids"
"""The ids, or how many there are and their hash."""
REQUEST_BAD_WORDS: Final = "lightning.request.bad_words"
"""How many there are, and their hash."""
REQUEST_UNKNOWN: Final = "lightning.request.unknown"
"""Names of other parameters that change what is drawn from, in ways that cannot be computed again."""
SUPPORT_KNOWN: Final = "lightning.response.support_known"
"""True where the engine says what tokens were drawn from; those of a choice without a support could have been any."""

# -- lightning: exact tokens -------------------------------------------------------------------------------------------
PROMPT_TOKEN_IDS: Final = "lightning.prompt.token_ids"
NO_TOKEN_IDS: Final = "lightning.host.no_token_ids"
"""True on a call to a host that the user named, where its answer brought no token ids."""
PROMPT_KEPT_TOKENS: Final = "lightning.prompt.kept_tokens"
"""How many tokens the prompt begins with that the engine kept as they were, where tokenizing its text gave others."""
CHOICES: Final = "lightning.response.choices"
"""Number of choices in the response; choice ``i`` has the two attributes below."""
POLICY: Final = "lightning.policy.name"
POLICY_VERSION: Final = "lightning.policy.version"
STREAM_COMPLETE: Final = "lightning.stream.complete"
"""False on the span of a stream that ended before its last chunk."""
CALL_ABANDONED: Final = "lightning.call.abandoned"
"""True on a span below a gateway's record: the caller never had the end of that answer, so it counts as interrupted."""

API: Final = "lightning.api"
"""Wire format of a model call: chat_completions, completions, responses, messages, gemini, ollama_chat ..."""
CAPTURED_BY: Final = "lightning.captured_by"
"""The library whose hook recorded a model call: openai, httpx, httpx2, requests, aiohttp or botocore."""
OUTER_SPAN: Final = "lightning.outer_span"
"""On a model call: the span of another tracer in this process that it was made in, as ``TRACE_ID-SPAN_ID`` in hex. Both
traces may come to one store, and this says that what records the call there records this one."""

# -- lightning: a call that was routed to the gateway; its own attributes say where it went ----------------------------
ROUTE_POLICY: Final = "lightning.route.policy"
"""The policy that claims the agent: to its gateway the call was sent."""
ROUTE_FROM_URL: Final = "lightning.route.from.url"
"""Where the call would have gone; without query, user name and password."""
ROUTE_FROM_MODEL: Final = "lightning.route.from.model"
"""The model that the caller named."""
ROUTE_FELL_BACK: Final = "lightning.route.fell_back"
"""True where the daemon was away and the call went where it always went."""

LOSSES_SPAN: Final = "lightning.not_captured"
"""Name of the span by which a process says what it could not capture; the newest of a process holds for all before."""
LOSSES: Final = "lightning.not_captured.counts"
"""On that span: JSON text, how often by reason since the process began."""
PROCESS_ID: Final = "lightning.process.id"
"""On that span: random, one a process; a pid comes again."""

GATEWAY_SCOPE: Final = "lightning.gateway"
GATEWAY_NOTE_SCOPE: Final = "lightning.gateway.notes"
"""Of what the gateway says about its records afterwards; not calls."""
CLIENT_SCOPE: Final = "lightning.instrumentation"


def response_token_ids(choice: int) -> str:
    """Name of the attribute with the sampled ids of one choice."""
    return f"lightning.response.{choice}.token_ids"


def response_logprobs(choice: int) -> str:
    """Name of the attribute with the sampled tokens' log-probabilities of one choice, nats."""
    return f"lightning.response.{choice}.logprobs"


def response_support(choice: int) -> str:
    """Name of the attribute with what each token of one choice could have been (``lightning_trainer.sampling``)."""
    return f"lightning.response.{choice}.support"


def response_routed_experts(choice: int) -> str:
    """Name of the attribute with the experts that prompt and response went through (``lightning_trainer.experts``)."""
    return f"lightning.response.{choice}.routed_experts"


def response_support_unknown(choice: int) -> str:
    """Name of the attribute that says why it is not known what the tokens of one choice were drawn from."""
    return f"lightning.response.{choice}.support_unknown"
