"""Command line and config file: parsing them into settings, help, and advice about mistakes."""
