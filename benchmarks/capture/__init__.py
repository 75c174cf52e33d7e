"""What recording costs the thread that waits for its answer, beside other recorders of the same call."""
