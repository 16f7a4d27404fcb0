"""Command line and config file: parsing into settings, help texts, and advice after mistakes."""
