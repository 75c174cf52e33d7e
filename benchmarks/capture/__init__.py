"""What recording costs the thread that waits for its answer, compared with other recorders of the same call."""
