// Anthropic's client for Node.js: a message, its tool's result, and the answer.
"use strict";

const { Anthropic } = require("@anthropic-ai/sdk");

exports.play = async ({ baseURL, key, model, stream, system, question }) => {
  const client = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: key });
  const input_schema = { type: "object", properties: { city: { type: "string" } } };
  const asked = { model, system, max_tokens: 64, tools: [{ name: "weather", input_schema }] };
  const ask = async (messages) =>
    stream
      ? client.messages.stream({ ...asked, messages }).finalMessage()
      : client.messages.create({ ...asked, messages });
  const messages = [{ role: "user", content: question }];
  const { content } = await ask(messages);
  const use = content.find((block) => block.type === "tool_use");
  const result = { type: "tool_result", tool_use_id: use.id, content: "sunny" };
  await ask([...messages, { role: "assistant", content }, { role: "user", content: [result] }]);
};
