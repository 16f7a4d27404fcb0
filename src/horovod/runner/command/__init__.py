"""Command line and config file of horovodrun: parsing, help texts, and suggestions for mistakes."""
