"""Google ADK under the toolkit, in an environment without openpipe-art: `make test-adk` runs it."""
