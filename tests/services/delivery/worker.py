"""A worker of delivery alone for the tests: `python worker.py <bootstrap servers> <namespace> [JSON]`."""

import json
import logging
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from rollbus.streams.stages.delivery.observing import ObservingStage
    from rollbus.streams.stages.delivery.stage import DeliveryStage
    from rollbus.streams.state.stage import PureAsEffects
    from rollbus.streams.state.ticker import config_applied
    from rollbus.streams.worker.worker import run_worker
    from tests.services.delivery.test_delivery import RUN
    from tests.services.streams.fixtures import stream_settings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    stages = [PureAsEffects(ObservingStage(RUN)), PureAsEffects(DeliveryStage(RUN))]
    configs = [config_applied(stage, RUN.run_id, RUN) for stage in ("observing", "delivery")]
    run_worker(stream_settings(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3])), stages, configs)
