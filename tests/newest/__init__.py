"""The newest release of each framework, in an environment of its own: `make test-newest`. Not part of `make test`."""
