"""Samples as the tensors that verl's workers take, whole or as a process's share."""
