"""A worker process for the tests: `python worker.py <bootstrap servers> <namespace> [JSON of settings]`."""

import json
import logging
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from rollbus.streams.worker.worker import run_worker
    from tests.services.streams.fixtures import CountStage, stream_settings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    changes = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    stage = CountStage(changes.pop("stage", "counter"))
    run_worker(stream_settings(sys.argv[1], sys.argv[2], **changes), [stage])
