"""Watches: what entries changed, from now on or from an old cursor."""
