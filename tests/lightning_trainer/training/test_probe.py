from lightning_trainer.training.probe import probe_token_ids


def test_a_model_without_a_tokenizer_is_probed_on_bytes_below_its_vocabulary(tiny_models):
    for folder in (tiny_models("llama"), tiny_models("qwen2", tied=False)):
        sequences = probe_token_ids(folder, 100)
        assert [len(sequence) for sequence in sequences] == [40] * 4
        assert all(0 <= token < 100 for sequence in sequences for token in sequence)
        assert sequences == probe_token_ids(folder, 100)
