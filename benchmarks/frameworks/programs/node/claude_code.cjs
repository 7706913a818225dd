// Claude Code, the command of @anthropic-ai/claude-code: one turn with a shell command, which it always streams.
"use strict";

const { execFile } = require("node:child_process");
const path = require("node:path");
const { promisify } = require("node:util");

exports.play = async ({ baseURL, key, system, question }) => {
  const claude = path.join(process.env.NODE_PATH, ".bin", "claude");
  const env = {
    ...process.env,
    ANTHROPIC_BASE_URL: baseURL.replace(/\/v1$/, ""),
    ANTHROPIC_API_KEY: key,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  };
  const asked = ["-p", `${question} CALL[Bash command=echo sunny]`, "--append-system-prompt", system];
  const options = ["--model", "claude-sonnet-4", "--allowedTools", "Bash(echo:*)", "--output-format", "json"];
  const running = promisify(execFile)(claude, [...asked, ...options], { env, timeout: 240_000 });
  running.child.stdin.end();
  const { stdout } = await running;
  const { is_error: failed, num_turns: turns, result } = JSON.parse(stdout);
  if (failed || turns < 2) throw new Error(`${turns} turns, ${result}`);
};
