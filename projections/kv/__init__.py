"""Owner 0x01: keys with versions, lifetimes and leases."""
