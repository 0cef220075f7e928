"""One file per op: reference in plain torch, Triton kernel, launcher.

`cpu/` holds the CPU implementations.
"""
