"""rollbus (rollouts on a bus): train an LLM agent from its own production traffic.

    episode events → trajectories → scores → groups → curriculum windows → batches → GRPO updates → metrics

`rollbus.schemas` is the vocabulary, `rollbus.runtime` the plumbing of a process. `producers`, `streams`,
`consumers` and `trainer` meet only on Kafka topics.
"""

from pkgutil import extend_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollbus.producers import Episode, Recorder, init
    from rollbus.producers.integrations.instrument import instrument
    from rollbus.runtime.credentials import read_token

# In a checkout this folder shadows the installed package, whose other folders are next to it, not in it.
__path__ = extend_path(__path__, __name__)

from rollbus.runtime.lazy import lazy_names

__version__ = "0.1.0"
__all__ = ["Episode", "Recorder", "__version__", "init", "instrument", "read_token"]

__getattr__ = lazy_names(
    __name__,
    {
        "Episode": "producers",
        "Recorder": "producers",
        "init": "producers",
        "instrument": "producers.integrations.instrument",
        "read_token": "runtime.credentials",
    },
)
