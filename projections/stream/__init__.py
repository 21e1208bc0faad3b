"""Owner 0x04: streams of records, and consumer groups."""
