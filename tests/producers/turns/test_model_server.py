"""Addresses of calls: what of them a record names."""

import pytest

from rollbus.producers.turns.model_server import server_of


@pytest.mark.parametrize(
    ("address", "server"),
    [
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("https://api.openai.com/v1/chat/completions", "https://api.openai.com"),
        ("https://user:secret@models.example:8443/deployments/x?api-key=secret#y", "https://models.example:8443"),
        ("https://models.example?key=secret@host", "https://models.example"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://[::1:8000/v1", ""),
        ("models.example/v1", ""),
        ("/rollbus/episodes/e1/v1", ""),
        ("", ""),
    ],
)
def test_a_server_is_named_without_credentials_path_or_query(address: str, server: str) -> None:
    assert server_of(address) == server
