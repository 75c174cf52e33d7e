"""The log into the archive (`run`), and an archive into a namespace of its own (`restore`)."""
