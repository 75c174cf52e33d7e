"""How fast a range is decided again, beside reading and decoding it and nothing else, and beside the live worker."""
