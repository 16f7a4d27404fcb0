"""Command line and config file of horovodrun: parsing, help texts, and corrections of mistyped flags."""
