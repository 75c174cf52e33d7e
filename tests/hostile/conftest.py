"""The real services of `tests/services`."""

from tests.services.conftest import art_base_model, art_launcher, clickhouse, kafka, namespace

__all__ = ["art_base_model", "art_launcher", "clickhouse", "kafka", "namespace"]
