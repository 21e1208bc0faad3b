"""Stubs generated from ``proto/onelog/v1`` by ``make proto``."""
