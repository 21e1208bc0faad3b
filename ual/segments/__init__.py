"""Segments, the files of the log: their bytes, tables, sealing, checks and exchange."""
