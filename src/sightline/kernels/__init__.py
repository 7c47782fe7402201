"""Triton kernels and their launchers: plain tensors in and out. Triton is imported only when one is used."""
