"""Calls to transitions, trajectories and samples, with a ledger of every sampled token."""
