"""Owner 0x03: points in columns, rollups and queries."""
