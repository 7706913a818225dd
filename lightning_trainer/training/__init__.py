"""From batches of samples to better weights: verl's TrainingWorker on a token tree, checkpoints, publication."""
