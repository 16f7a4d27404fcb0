"""What is known of containers before one is looked at."""

SHM_DEFAULT = 64 << 20
"""Bytes of /dev/shm that Docker, Podman and Kubernetes give when nobody asks for more: NCCL and data loaders soon fill
them."""
