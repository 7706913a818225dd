"""DSPy: a prediction, and the same as a stream."""

import asyncio

import dspy

from benchmarks.frameworks.program import KEY, MODEL, Task

ANSWER = "SAY<[[ ## answer ## ]]\nsunny\n\n[[ ## completed ## ]]>"


def play(task: Task) -> None:
    model = dspy.LM(f"openai/{MODEL}", api_base=task.base_url, api_key=KEY, cache=False)
    signature = dspy.Signature("question -> answer", task.system)
    question = f"{task.question} {ANSWER}"
    with dspy.context(lm=model):
        predict = dspy.Predict(signature)
        if task.stream:
            asyncio.run(_stream(predict, question))
        else:
            predict(question=question)


async def _stream(predict: dspy.Predict, question: str) -> None:
    async for _ in dspy.streamify(predict)(question=question):
        pass
