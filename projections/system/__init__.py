"""Owner 0x00: time, sessions, namespaces, holds and the members of the group."""
