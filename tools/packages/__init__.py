"""Install Python packages for this project, with uv if it is available or can be installed, otherwise with pip.

    python -m tools.packages install [arguments of pip install]
    python -m tools.packages pytorch 2.13.0

The first command installs into the environment of the Python that runs it. The second prints the arguments that
install that version of PyTorch, its CPU build on a machine without an NVIDIA GPU. Both need only the standard library.
"""
