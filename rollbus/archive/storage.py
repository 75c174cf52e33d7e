"""A folder, or a bucket of object storage: whole files by name, read, created once, listed and deleted.

fsspec reaches both. Unlike Arrow's own file systems it creates an object only if there is none of its name, so of two
archivers one is refused. In a folder a file is written under another name and linked, so that no
reader ever sees a part of one.
"""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec

from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError

PART = ".part"
"""Ends the name of a file that is being written."""


class Storage:
    """The files below one folder or URL."""

    def __init__(self, url: str) -> None:
        """Raise ConfigurationError for a URL of a kind that nothing installed can reach."""
        self.url = url.rstrip("/") or "/"
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"no archive can be at {url}: {error}; for s3:// install 'rollbus[s3]'") from error
        self._is_folder = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else ())

    def list(self, folder: str) -> list[str]:
        """Return the names of the files below a folder, sorted; none if there is no such folder."""
        with self._errors("listed", folder):
            self._fs.invalidate_cache()
            try:
                paths: list[str] = self._fs.find(self._path(folder))
            except FileNotFoundError:
                return []
        root = str(self._root).rstrip("/")
        return sorted(path.removeprefix(root).lstrip("/") for path in paths)

    def read(self, name: str) -> bytes:
        """Return a file's bytes; raises FileNotFoundError."""
        with self._errors("read", name):
            data: bytes = self._fs.cat_file(self._path(name))
            return data

    def create(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all; raises FileExistsError if there is one of that name."""
        with self._errors("written", name):
            if self._is_folder:
                _link_into_place(Path(self._path(name)), data)
            else:
                self._fs.pipe_file(self._path(name), data, mode="create")

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; a file that is gone already is not an error."""
        for name in names:
            with self._errors("deleted", name), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _errors(self, done: str, name: str) -> Iterator[None]:
        """Turn the errors of every kind of storage into ours; that a file exists or does not stays what it is."""
        what = f"{name} of the archive {self.url} cannot be {done}"
        try:
            yield
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            if "bucket" in str(error).lower():
                raise RejectedError(f"{what}: {error}; look at the bucket's name") from error
            raise
        except PermissionError as error:
            raise RejectedError(f"{what}: {error or 'refused'}; look at its credentials and at their rights") from error
        except OSError as error:
            raise UnavailableError(f"{what}: {error.strerror or error}; what the manifests name is whole") from error
        except Exception as error:  # each kind of storage has errors of its own, such as missing credentials
            if type(error).__module__.partition(".")[0] not in _CLIENTS:
                raise
            raise RejectedError(f"{what}: {error}; look at its credentials and its address") from error


_CLIENTS = frozenset({"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs"})


def _link_into_place(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")  # in containers processes have one id
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)
        _sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Let the new name outlive a loss of power."""
    descriptor: Any = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
