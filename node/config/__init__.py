"""The settings of a node: described once, read from flags, environment and file."""
