"""Version number of the package, which the build also reads."""

__version__ = "1.0.0.dev0"
