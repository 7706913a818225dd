"""Batches of samples to better weights: verl's TrainingWorker over a token tree, checkpoints and published weights."""
