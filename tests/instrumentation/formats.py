"""What the pretended inference server answers in other wire formats than chat, as vLLM and Anthropic write them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def _words(said: str) -> list[str]:
    return ['{"x":', "7}"] if said == "json" else ["answer ", "to ", *(f"{word} " for word in said.split())]


def ids(words: list[str]) -> list[int]:
    return [sum(word.encode()) for word in words]


def sampled(said: str) -> list[int]:
    return ids(_words(said))


def _logprob(position: int) -> float:
    return -0.25 * (position + 1)


def _event(document: Mapping[str, Any]) -> bytes:
    return f"event: {document['type']}\ndata: {json.dumps(document)}\n\n".encode()


class Completions:
    def said(self, body: Mapping[str, Any]) -> str:
        return str(body["prompt"])

    def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]] * (body.get("n") or 1)
        words = _words(self.said(body))
        choices = []
        for index, prompt in enumerate(prompts):
            one = {**body, "prompt": prompt}
            part = self._part(one, _words(prompt), 0, len(_words(prompt)), first=True)
            choices.append({"index": index, "finish_reason": "stop", **part})
        usage = {"prompt_tokens": 3, "completion_tokens": len(words), "total_tokens": 3 + len(words)}
        return {**self._head(body), "choices": choices, "usage": usage}

    def events(self, body: Mapping[str, Any]) -> Iterator[bytes]:
        words = _words(self.said(body))
        for at in range(len(words)):
            last = at == len(words) - 1
            part = self._part(body, words, at, at + 1, first=at == 0)
            choice = {"index": 0, "finish_reason": "stop" if last else None, **part}
            yield f"data: {json.dumps({**self._head(body), 'choices': [choice]})}\n\n".encode()
        yield b"data: [DONE]\n\n"

    def _head(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"id": f"cmpl-{self.said(body)}", "object": "text_completion", "created": 1, "model": body["model"]}

    def _part(self, body: Mapping[str, Any], words: list[str], start: int, end: int, *, first: bool) -> dict[str, Any]:
        asked = body.get("return_token_ids")
        logprobs = {
            "text_offset": [0] * (end - start),
            "token_logprobs": [_logprob(at) for at in range(start, end)],
            "tokens": words[start:end],
            "top_logprobs": [{word: 0.0} for word in words[start:end]],
        }
        return {
            "text": "".join(words[start:end]),
            "logprobs": logprobs if body.get("logprobs") is not None else None,
            "token_ids": ids(words[start:end]) if asked else None,
            "prompt_token_ids": ids(self.said(body).split()) if asked and first else None,
        }


class Responses:
    def said(self, body: Mapping[str, Any]) -> str:
        given = body["input"]
        return given if isinstance(given, str) else str(given[-1].get("content") or given[-1].get("output"))

    def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._response(body, "completed")

    def events(self, body: Mapping[str, Any]) -> Iterator[bytes]:
        number = iter(range(1000))
        begun = {**self._response(body, "in_progress"), "output": [], "usage": None}
        yield _event({"type": "response.created", "sequence_number": next(number), "response": begun})
        whole = self._response(body, "completed")
        for index, item in enumerate(whole["output"]):
            at = {"output_index": index, "item_id": item["id"]}
            added = {**item, "arguments": ""} if "arguments" in item else {**item, "content": []}
            start = {"type": "response.output_item.added", "sequence_number": next(number), "output_index": index}
            yield _event({**start, "item": added})
            if item["type"] == "message":
                empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": None}
                part = {**at, "content_index": 0}
                yield _event(
                    {"type": "response.content_part.added", "sequence_number": next(number), **part, "part": empty}
                )
                for word in _words(self.said(body)):
                    delta = {"type": "response.output_text.delta", "sequence_number": next(number), **part}
                    yield _event({**delta, "delta": word, "logprobs": []})
                text = item["content"][0]["text"]
                done = {"type": "response.output_text.done", "sequence_number": next(number), **part}
                yield _event({**done, "text": text, "logprobs": []})
                yield _event(
                    {
                        "type": "response.content_part.done",
                        "sequence_number": next(number),
                        **part,
                        "part": item["content"][0],
                    }
                )
            yield _event(
                {
                    "type": "response.output_item.done",
                    "sequence_number": next(number),
                    "output_index": index,
                    "item": item,
                }
            )
        yield _event({"type": "response.completed", "sequence_number": next(number), "response": whole})

    def _response(self, body: Mapping[str, Any], status: str) -> dict[str, Any]:
        said = self.said(body)
        words = _words(said)
        text = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": None}
        output: list[dict[str, Any]] = [
            {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        ]
        if body.get("tools"):
            name, arguments = body["tools"][0]["name"], json.dumps({"expression": "2+3"})
            output = [
                {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": name, "arguments": arguments}
            ]
        raw = body.get("enable_response_messages")
        counts = {"input_tokens": 3, "output_tokens": len(words), "total_tokens": 3 + len(words)}
        details = {
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        kind = "raw_message_tokens"
        return {
            "id": f"resp_{said}",
            "object": "response",
            "created_at": 1,
            "model": body["model"],
            "status": status,
            "output": output,
            "usage": {**counts, **details},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": body.get("tools") or [],
            "incomplete_details": None,
            "error": None,
            "input_messages": [{"type": kind, "message": said, "tokens": ids(said.split())}] if raw else None,
            "output_messages": [{"type": kind, "message": "", "tokens": ids(words)}] if raw else None,
        }


class Messages:
    def said(self, body: Mapping[str, Any]) -> str:
        return str(body["messages"][-1]["content"])

    def whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self.said(body)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": self._blocks(body),
            "stop_reason": "tool_use" if body.get("tools") else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 3, "output_tokens": len(_words(self.said(body)))},
        }

    def events(self, body: Mapping[str, Any]) -> Iterator[bytes]:
        whole = self.whole(body)
        begun = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 1}}
        yield _event({"type": "message_start", "message": begun})
        yield _event({"type": "ping"})
        for index, block in enumerate(whole["content"]):
            is_text = block["type"] == "text"
            empty = {**block, "text": ""} if is_text else {**block, "input": {}}
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
            text = block["text"] if is_text else json.dumps(block["input"])
            for piece in (text[:5], text[5:]):
                delta = (
                    {"type": "text_delta", "text": piece}
                    if is_text
                    else {"type": "input_json_delta", "partial_json": piece}
                )
                yield _event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _event({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        usage = {"output_tokens": whole["usage"]["output_tokens"]}
        yield _event({"type": "message_delta", "delta": delta, "usage": usage})
        yield _event({"type": "message_stop"})

    def _blocks(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        text = {"type": "text", "text": "".join(_words(self.said(body)))}
        if not body.get("tools"):
            return [text]
        call = {"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": {"expression": "2+3"}}
        return [text, call]


FORMATS = {"/v1/completions": Completions(), "/v1/responses": Responses(), "/v1/messages": Messages()}
