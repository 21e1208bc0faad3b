"""One shard of this node: driving it, its requests, its disk, and catching up."""
