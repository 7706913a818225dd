"""A crew of two, one with a tool: ordinary CrewAI, and two lines of lightning.

make crewai    # CrewAI needs older openai and pydantic than everything else here: an environment of its own
export OPENAI_BASE_URL=http://127.0.0.1:8321/v1 OPENAI_API_KEY=unused OPENAI_MODEL=example
.venv-crewai/bin/python examples/crewai/agent.py "lighthouses"
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
import sys

import lightning_instrumentation as lt
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

lt.init()


@tool
def count_words(text: str) -> str:
    """Count the words of a text."""
    return str(len(text.split()))


def main(topic: str) -> None:
    model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    # The prefix says "an OpenAI-compatible server"; the base URL comes from the environment.
    llm = LLM(model=f"openai/{model}", base_url=os.environ.get("OPENAI_BASE_URL"))
    researcher = Agent(role="researcher", goal="Find facts.", backstory="You read.", llm=llm, tools=[count_words])
    writer = Agent(role="writer", goal="Write a sentence.", backstory="You write.", llm=llm)
    research = Task(description=f"Three facts about {topic}.", expected_output="A list.", agent=researcher)
    write = Task(description=f"A sentence about {topic}.", expected_output="A sentence.", agent=writer)
    print(Crew(agents=[researcher, writer], tasks=[research, write]).kickoff())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('usage: .venv-crewai/bin/python examples/crewai/agent.py "TOPIC"')
    main(sys.argv[1])
