"""The GPUs of the machine: who gets which, and how trainer and engine take turns on one."""
