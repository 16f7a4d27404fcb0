"""The package's version number, which the build also reads."""

__version__ = "1.0.0.dev0"
