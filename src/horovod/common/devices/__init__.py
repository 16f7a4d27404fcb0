"""Detection of this host's GPUs and their libraries without initializing CUDA, so that the program can still fork.

If hardware or libraries are missing, no error is raised: the result is empty and contains the reason. NCCL is not
loaded into this process, because frameworks that are imported later would use the loaded copy instead of their own.

- ``nvml`` queries NVIDIA's management library.
- ``libraries`` finds CUDA's driver, NCCL and NVTX, and ``versions`` determines their versions.
- ``affinity`` finds CPUs and network cards near a GPU.
- ``visible`` assigns GPUs to workers.
- ``trying`` tests whether CUDA starts, and ``mpi_libraries`` finds and tests the MPI library.
"""
