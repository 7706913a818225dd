"""Judging recorded attempts, and how reliable a judge is."""
