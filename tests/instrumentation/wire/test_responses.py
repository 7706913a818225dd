"""What a model did reads the same in its answer and when it is sent back as input."""

import json

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.wire.responses import Responses


@pytest.mark.parametrize(
    ("item", "arguments"),
    [
        ({"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"x":1}'}, {"x": 1}),
        ({"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "print(1)"}, "print(1)"),
    ],
    ids=["function", "custom"],
)
def test_a_call_and_its_result_are_parts_of_messages(item, arguments):
    answer = Responses().answer()
    answer.add({"id": "r1", "status": "completed", "output": [item]})
    (said,) = json.loads(answer.attributes(capture_content=True)[semconv.OUTPUT_MESSAGES])
    result = {"type": f"{item['type']}_output", "call_id": "c1", "output": "1"}
    call, response = Responses().input_messages({"input": [item, result]})

    parts = [{"type": "tool_call", "id": "c1", "name": item["name"], "arguments": arguments}]
    assert said == {"role": "assistant", "parts": parts, "finish_reason": "tool_calls"}
    assert call == {"role": "assistant", "parts": parts}
    assert response == {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "1"}]}
