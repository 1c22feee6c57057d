"""Content digests, action keys, and the store of what actions made."""
