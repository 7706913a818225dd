// A Node program, as its user wrote it: the base URL is all that it has of us. As program.py, of which it is the twin:
//   OPENAI_BASE_URL=URL NODE_PATH=.../node_modules node program.cjs node/NAME 'cell;at-once=4;stream' ...
"use strict";

const path = require("node:path");

const AGENT = "weatherman";

async function main([program, ...words]) {
  const { play } = require(path.join(__dirname, "programs", `${program}.cjs`));
  const failed = {};
  for (const word of words) {
    const [part, ...options] = word.split(";");
    const count = Number((options.find((option) => option.startsWith("at-once=")) ?? "=1").split("=")[1]);
    const task = {
      baseURL: process.env.OPENAI_BASE_URL,
      model: "m",
      key: "unused",
      stream: options.includes("stream"),
      system: `You are AGENT[${AGENT}]. Be brief.`,
      question: `What is the weather in Paris? ROLLOUT[${part}]`,
    };
    try {
      await Promise.all(Array.from({ length: count }, () => play(task)));
    } catch (error) {
      failed[part] = String(error).slice(0, 300);
    }
  }
  console.log(JSON.stringify(failed));
}

main(process.argv.slice(2));
