"""Servers of the benchmarks: a scripted inference server, and a daemon without engine and trainer."""
