"""The same calls, read the same whichever instrumentation saw them."""
