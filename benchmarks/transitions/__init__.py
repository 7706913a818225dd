"""Transitions: workloads, one section a file, and the peer."""
