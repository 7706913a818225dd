// Vercel's AI SDK over an OpenAI-compatible provider: text with a tool, in two steps.
"use strict";

const { generateText, stepCountIs, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { z } = require("zod");

exports.play = async ({ baseURL, key, model, stream, system, question }) => {
  const provider = createOpenAICompatible({ name: "local", baseURL, apiKey: key });
  const weather = tool({
    description: "Tell the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  });
  const asked = { model: provider(model), system, prompt: question, tools: { weather }, stopWhen: stepCountIs(3) };
  if (stream) {
    for await (const _ of streamText(asked).textStream);
  } else {
    await generateText(asked);
  }
};
