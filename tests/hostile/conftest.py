"""The real services of `tests/services`."""

from tests.services.conftest import clickhouse, kafka, namespace

__all__ = ["clickhouse", "kafka", "namespace"]
