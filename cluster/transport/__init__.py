"""Connections between peers, and the bytes on them."""
