import shutil

import pytest

from lightning_trainer.training.probe import probe_token_ids


def test_a_model_without_a_tokenizer_is_probed_on_bytes_below_its_vocabulary(tiny_models):
    for folder in (tiny_models("llama"), tiny_models("qwen2", tied=False)):
        sequences = probe_token_ids(folder, 100, 2048)
        assert [len(sequence) for sequence in sequences] == [68]
        assert all(0 <= token < 100 for token in sequences[0])
        assert sequences == probe_token_ids(folder, 100, 2048)


@pytest.mark.parametrize("max_model_len", [16, 64, 68, 69])
def test_an_engine_of_short_sequences_can_score_it(tiny_models, max_model_len):
    (sequence,) = probe_token_ids(tiny_models("llama"), 100, max_model_len)
    assert max_model_len - 4 <= len(sequence) < max_model_len


@pytest.mark.parametrize("text", ["{", "[]", '{"model": 3}', '"x"'])
def test_a_tokenizer_that_cannot_be_read_is_as_good_as_none(text, tiny_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "tokenizer.json").write_text(text)
    ((*ids,),) = probe_token_ids(folder, 512, 256)
    assert ids
    assert max(ids) < 512
