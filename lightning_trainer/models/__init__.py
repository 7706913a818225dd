"""From a model's name in the configuration to a folder that both trainer and engine read."""
