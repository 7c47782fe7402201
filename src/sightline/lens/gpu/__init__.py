"""The pass by the Triton kernels: which jobs they do, and whether they are right on this machine."""
