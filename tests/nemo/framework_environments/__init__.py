"""Frameworks that the toolkit wraps, each in an environment of its own: `make test-nat-frameworks` runs them."""
