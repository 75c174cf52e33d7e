"""A user's own parts of the toolkit in a run: `builder` puts what they build on the log, `adapter` trains from it."""
