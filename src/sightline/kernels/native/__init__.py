"""The kernel in C for the pass on the CPU, and how it is compiled on the machine it runs on."""
