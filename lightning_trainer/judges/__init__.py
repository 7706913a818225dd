"""Judges: models and programs that reward attempts which nothing else scores.

One kind per file. All of them read stored spans and return evaluations, so they work on recordings of any age. A judge
that fails leaves the reward missing, never zero.
"""
