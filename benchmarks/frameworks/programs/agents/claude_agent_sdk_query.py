"""Claude Agent SDK: a query with a shell command; the calls are made by the Claude Code that the SDK contains."""

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from benchmarks.frameworks.program import KEY, Task


async def play(task: Task) -> None:
    options = ClaudeAgentOptions(
        model="claude-sonnet-4",
        system_prompt=task.system,
        allowed_tools=["Bash(echo:*)"],
        include_partial_messages=task.stream,
        env={
            "ANTHROPIC_BASE_URL": task.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    )
    async for message in query(prompt=f"{task.question} CALL[Bash command=echo sunny]", options=options):
        if isinstance(message, ResultMessage) and (message.is_error or message.num_turns < 2):
            raise RuntimeError(f"{message.num_turns} turns, {message.result}")
