"""A simulated libcuda.so.1, and in Python what a framework has on it: a device, streams, arrays."""
