"""Defaults of container runtimes."""

SHM_DEFAULT = 64 << 20
"""Bytes of /dev/shm that Docker, Podman and Kubernetes provide by default. NCCL and data loaders soon fill them."""
