"""The plugin's entry point in the group `nat.components`: registrations, where the toolkit has what they need."""

from importlib import import_module

from rollbus.nemo.toolkit_version import require_toolkit

require_toolkit()
import_module("rollbus.nemo.registrations")
