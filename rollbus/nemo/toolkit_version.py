"""What the plugin needs of the NeMo Agent Toolkit; nothing of it is imported here.

Of 1.9 it uses registration of evaluation callbacks, the ATIF lane of evaluators, the exporter that is copied for each
request, and the finetuning interfaces. They change from one minor version to the next.
"""

from importlib.metadata import version

from rollbus.schemas.errors import ConfigurationError

PACKAGE, SUPPORTED = "nvidia-nat-core", "1.9."


def require_toolkit() -> None:
    """Raise ConfigurationError where another version is installed than the plugin is made for."""
    if not (installed := version(PACKAGE)).startswith(SUPPORTED):
        raise ConfigurationError(
            f"rollbus is made for {PACKAGE} {SUPPORTED}x, and {installed} is installed: pip install 'rollbus[nat]'"
        )
