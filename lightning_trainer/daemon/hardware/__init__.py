"""Engines and trainers on the machine's cores, memory and GPUs."""
