// An agent in Node.js with OpenAI's own client. Nothing in `answer` knows about lightning-trainer: the client reads
// OPENAI_BASE_URL, as it does anywhere.
//   npm install && DAEMON=http://127.0.0.1:8321 POLICY=support node agent.mjs
import { randomUUID } from "node:crypto";
import OpenAI from "openai";

const daemon = process.env.DAEMON ?? "http://127.0.0.1:8321";

async function answer(question) {
  const client = new OpenAI();
  const stream = await client.chat.completions.create({
    model: process.env.POLICY ?? "support",
    messages: [{ role: "user", content: question }],
    max_tokens: 32,
    stream: true,
  });
  let text = "";
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return text;
}

// Four attempts at one task, each with a base URL of its own.
for (let attempt = 0; attempt < 4; attempt++) {
  const rollout = randomUUID();
  process.env.OPENAI_BASE_URL = `${daemon}/rollouts/${rollout}/agents/support/v1`;
  process.env.OPENAI_API_KEY ??= "none"; // where the daemon has a token: OPENAI_API_KEY=$(lightning-trainer token)

  const text = await answer("Where is parcel 4711? Name the number.");
  const reward = text.includes("4711") ? 1 : 0;
  const ended = await fetch(`${daemon}/rollouts/${rollout}/end`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${process.env.OPENAI_API_KEY}` },
    body: JSON.stringify({ reward, task_id: "parcel-4711" }),
  });
  if (!ended.ok) throw new Error(`the rollout could not be ended: ${await ended.text()}`);
  console.log(JSON.stringify({ rollout, reward, text }));
}
