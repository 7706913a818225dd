"""What a policy's model cannot see is refused with one sentence, in the words of the caller's API."""

import pytest

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def chat(*parts) -> dict:
    messages = [{"role": "system", "content": "Look."}, {"role": "user", "content": list(parts)}]
    return {"model": "sql", "messages": messages}


def image(url: str = PIXEL) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("sees", "part", "said"),
    [
        (False, image(), ["'sql'", "text alone", "image_url part of message 2"]),
        (False, {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, ["input_audio part"]),
        (True, {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, ["'sql'", "neither"]),
        (True, image("https://host/cat.png"), ["'https://host/cat.png'", "not fetched", "data:image/png"]),
        (True, image("file:///etc/passwd"), ["'file:///etc/passwd'", "not fetched"]),
        (True, image("data:image/png;base64,iVBORw0KGgo" + "A" * 2000), ["media_size_each", "smaller"]),
        (True, image("data:image/png;base64,AAAA"), ["not the base64 of a PNG"]),
        (True, image("data:image/png;base64,iVBORw0KGgo, a"), ["not the base64 of a PNG"]),
        # The engine reads the address of a part without a type, and with a uuid that of any field.
        (True, {"image_url": "http://169.254.169.254/"}, ["a part of message 2", "no type"]),
        (False, {"type": None, "video_url": {"url": "http://169.254.169.254/"}}, ["a part of message 2", "no type"]),
        (True, {"type": ["text"], "text": "x"}, ["a part of message 2", "no type"]),
        (True, {"type": "text", "text": "x", "uuid": "1", "image_url": "http://h/"}, ["text part", "image_url"]),
        (True, {**image(), "uuid": "1", "audio_url": "http://h/"}, ["image_url part", "audio_url"]),
        (True, {**image(), "uuid": "1"}, ["image_url part", "uuid"]),
        (True, {"type": "input_image", "input_image": PIXEL, "image_url": "http://h/"}, ["'http://h/'", "not fetched"]),
    ],
)
async def test_a_part_that_cannot_be_taken_is_refused_by_its_name(open_gateway, sees, part, said):
    async with open_gateway(of_policy={"sees": sees, "media_size_each": 1024.0}) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=chat({"type": "text", "text": "What?"}, part))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "unsupported_content")
        assert [words for words in said if words not in error["message"]] == []
        assert not gateway.sink.spans


async def test_every_api_refuses_in_its_own_shape(open_gateway):
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    message = {"role": "user", "content": [{"type": "image", "source": source}]}
    item = {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}
    async with open_gateway(of_policy={"sees": False}) as gateway:
        said = await gateway.http.post("/v1/messages", json={"model": "sql", "max_tokens": 8, "messages": [message]})
        assert (said.status_code, said.json()["type"]) == (400, "error")
        assert "text alone" in said.json()["error"]["message"]
        said = await gateway.http.post("/v1/responses", json={"model": "sql", "input": [item]})
        assert said.status_code == 400
        assert "text alone" in said.json()["error"]["message"]


async def test_what_cannot_be_taken_is_not_counted_either(open_gateway):
    """The engine would fetch an address to count its tokens, too."""
    sources = [{"type": "url", "url": "http://169.254.169.254/"}, {"type": "url", "url": "file:///etc/passwd"}]
    async with open_gateway(of_policy={"sees": True}) as gateway:
        gateway.engine.app.post("/tokenize")(lambda: {"tokens": [1, 2]})
        for source in sources:
            message = {"role": "user", "content": [{"type": "image", "source": source}]}
            body = {"model": "sql", "messages": [message]}
            said = await gateway.http.post("/v1/messages/count_tokens", json=body)
            assert (said.status_code, "not fetched" in said.text) == (400, True), said.text


async def test_an_image_reaches_a_model_that_sees_as_it_was_sent(open_gateway):
    async with open_gateway(of_policy={"sees": True}) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=chat({"type": "text", "text": "What?"}, image()))
        assert answer.status_code == 200
        assert gateway.engine.requests[-1]["messages"][1]["content"][1] == image()


async def test_fields_that_a_client_leaves_empty_are_no_media(open_gateway):
    part = {"type": "text", "text": "What?", "image_url": None, "uuid": None}
    async with open_gateway(of_policy={"sees": False}) as gateway:
        assert (await gateway.http.post("/v1/chat/completions", json=chat(part))).status_code == 200


async def test_where_nobody_knows_the_engine_decides(gateway):
    answer = await gateway.http.post("/v1/chat/completions", json=chat(image("https://host/cat.png")))
    assert answer.status_code == 200
