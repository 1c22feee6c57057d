"""Content digests and the memory of what was already hashed."""
