"""One module per op family; each registers itself (see `translate.registry`)."""
