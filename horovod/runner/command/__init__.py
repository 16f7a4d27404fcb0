"""From words on the command line to settings, and what is said about them."""
