"""A real engine in the type that it has by default; the others of the tests compute in float32."""

import pytest


@pytest.mark.slow
@pytest.mark.engine
def test_a_small_model_answers_in_bfloat16(start_engine, tmp_path):
    # On a CPU with AMX its attention is the first to use the tiles: oneDNN, which asks the kernel for them, leaves
    # products as small as these to others.
    engine = start_engine(tmp_path, dtype="bfloat16")
    try:
        request = {"model": "tiny", "prompt": [3, 4, 5], "max_tokens": 4}

        async def ask():
            async with engine.client() as client:
                return await client.post("/v1/completions", json=request)

        response = engine.wait(ask())
    finally:
        engine.close()
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] > 0
