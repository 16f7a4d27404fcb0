"""Rendezvous and job key exchange for ranks started by a launcher other than horovodrun."""
