"""What a program gets from its framework is the same with and without us, down to every event of its streams."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.process

PREAMBLE = """
import asyncio, json, os, re
import lightning_instrumentation as lt
lt.init(trusted_hosts=[os.environ["TRUSTED"]])
UUID, ADDRESS, SECONDS = r"[0-9a-f]{8}-[0-9a-f-]{27}", r"0x[0-9a-f]+", r"1[0-9]{9}[.][0-9]+"
DATE = r"\\d{4}-\\d\\d-\\d\\d[T ][0-9:.]+(?:Z|[+]00:00)?"
OF_THIS_RUN = re.compile("|".join((UUID, ADDRESS, SECONDS, DATE)))
def show(*things):
    for thing in things:
        dump = getattr(thing, "model_dump", None)
        print(OF_THIS_RUN.sub("*", json.dumps(dump(mode="json") if dump else thing, default=repr, sort_keys=True)))
def calculator(expression: str) -> str:
    "Compute."
    return str(eval(expression, {}))
"""
AUTOGEN = """
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
info = dict(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
async def main():
    client = OpenAIChatCompletionClient(model="m", model_info=info)
    plain = AssistantAgent("plain", client, tools=[calculator], reflect_on_tool_use=True)
    show(await plain.run(task="how much is 2+3"))
    boss = AssistantAgent("boss", client, model_client_stream=True, tools=[AgentTool(plain)])
    async for event in boss.run_stream(task="ask"):
        show(event)
    writer = AssistantAgent("writer", client)
    async for event in RoundRobinGroupChat([writer, plain], max_turns=3).run_stream(task="write"):
        show(event)
    show(await boss.save_state(), await writer.save_state())
asyncio.run(main())
"""
OPENAI_AGENTS = """
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled
set_default_openai_api("chat_completions")
set_tracing_disabled(True)
tool = function_tool(calculator)
expert = Agent("expert", model="m", tools=[tool])
triage = Agent("triage", model="m", handoffs=[expert])
boss = Agent("boss", model="m", tools=[expert.as_tool(tool_name="ask", tool_description="Asks.")])
async def main():
    for agent in (expert, triage, boss):
        result = await Runner.run(agent, "how much is 2+3")
        show(result.final_output, result.to_input_list(), result.raw_responses, result.context_wrapper.usage)
        run = Runner.run_streamed(agent, "how much is 2+3")
        async for event in run.stream_events():
            show(event.type, event.data if event.type == "raw_response_event" else None)
        show(run.final_output, run.to_input_list())
asyncio.run(main())
"""
PYDANTIC_AI = """
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
model = OpenAIChatModel("m")
solver = Agent(model, name="solver", tools=[calculator])
unsure = Agent(model, name="unsure")
boss = Agent(model, name="boss")
@unsure.tool_plain
def guess(expression: str) -> str:
    raise ModelRetry(f"not {expression}")
@boss.tool_plain
async def ask(question: str) -> dict:
    return {"said": (await solver.run(question)).output}
async def main():
    for agent in (solver, unsure, boss):
        result = await agent.run("how much is 2+3")
        show(result.output, json.loads(result.all_messages_json()))
        async with agent.run_stream("how much is 2+3") as stream:
            show([text async for text in stream.stream_text(debounce_by=None)])
        async with agent.iter("how much is 2+3") as run:
            async for node in run:
                show(type(node).__name__)
        show(json.loads(run.result.all_messages_json()), run.usage.__dict__)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "program", [AUTOGEN, OPENAI_AGENTS, PYDANTIC_AI], ids=["autogen", "openai_agents", "pydantic_ai"]
)
def test_every_message_and_event_is_the_same(program, receiver, model, tmp_path):
    def run(**environment: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(program)],
            env={
                **os.environ,
                "OPENAI_BASE_URL": model.base_url,
                "OPENAI_API_KEY": "unused",
                "TRUSTED": f"localhost:{model.port}",
                "LIGHTNING_ENDPOINT": receiver.url,
                "LIGHTNING_SPOOL_DIR": str(tmp_path),
                "PYTHONHASHSEED": "0",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    watched = run()
    calls = len(model.requests)
    assert all(body["return_token_ids"] for _, _, body in model.requests)
    receiver.wait_for(calls, prefix="chat")
    assert len(receiver.spans("chat")) == calls
    model.requests.clear()
    assert watched == run(OTEL_SDK_DISABLED="true")
    assert len(model.requests) == calls
    assert not any("return_token_ids" in json.dumps(body) for _, _, body in model.requests)
