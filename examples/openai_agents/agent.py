"""A triage agent hands over to one with a tool: an ordinary OpenAI Agents SDK program, and two lines of lightning.

export OPENAI_BASE_URL=http://127.0.0.1:8321/v1 OPENAI_API_KEY=unused OPENAI_MODEL=example
python examples/openai_agents/agent.py "How many words has this question?"
"""

import asyncio
import os
import sys

import lightning_instrumentation as lt
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

lt.init()

# Servers other than OpenAI's know chat completions; the SDK's own traces would go to OpenAI.
set_default_openai_api("chat_completions")
set_tracing_disabled(True)


@function_tool
def count_words(text: str) -> str:
    """Count the words of a text."""
    return str(len(text.split()))


async def main(question: str) -> None:
    model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    counter = Agent("counter", instructions="Answer with the tool.", model=model, tools=[count_words])
    triage = Agent("triage", instructions="Hand over to the right agent.", model=model, handoffs=[counter])
    run = Runner.run_streamed(triage, question)
    async for event in run.stream_events():
        if event.type == "agent_updated_stream_event":
            print(f"-- {event.new_agent.name}")
    print(run.final_output)
    if run.last_agent is not counter:
        return
    again = await Runner.run(counter, f"And this one? {question}")
    print(again.final_output)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('usage: python examples/openai_agents/agent.py "QUESTION"')
    asyncio.run(main(sys.argv[1]))
