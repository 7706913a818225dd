// OpenAI's client for Node.js: its loop over tools.
"use strict";

const { OpenAI } = require("openai");

exports.play = async ({ baseURL, key, model, stream, system, question }) => {
  const client = new OpenAI({ baseURL, apiKey: key });
  const weather = {
    type: "function",
    function: {
      name: "weather",
      description: "Tell the weather of a city.",
      parameters: { type: "object", properties: { city: { type: "string" } } },
      parse: JSON.parse,
      function: ({ city }) => `sunny in ${city}`,
    },
  };
  const messages = [{ role: "system", content: system }, { role: "user", content: question }];
  await client.chat.completions.runTools({ model, messages, stream, tools: [weather] }).finalContent();
};
