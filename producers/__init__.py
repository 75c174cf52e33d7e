"""The SDK that agents import: what they do becomes events on Kafka, and nothing that breaks here reaches them.

    rb = rollbus.init(bootstrap_servers="kafka:9092", producer="shop-agent")
    client = rb.wrap(OpenAI())
    with rb.episode(task="refund", example_id="case-17") as episode:
        ...                                      # every call of the client is a turn
    rb.feedback(episode.id, reward=1.0, key="thumbs")

In reading order: start (`init`) and recorder (the wiring), then the rooms: capture (the calls of an OpenAI client),
turns (a call to its turns), episode (ids and events), sending (queue, thread and sinks). `integrations` are the
frameworks' hooks, `proxy` is for programs that cannot be changed. `imports` brings in what others recorded.
"""

from typing import TYPE_CHECKING

from rollbus.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from rollbus.producers.episode.episode import Episode
    from rollbus.producers.recorder import Recorder
    from rollbus.producers.sending.sink import EventSink, MemorySink, Outbound
    from rollbus.producers.start import init

__all__ = ["Episode", "EventSink", "MemorySink", "Outbound", "Recorder", "init"]

__getattr__ = lazy_names(
    __name__,
    {
        "Episode": "episode.episode",
        "EventSink": "sending.sink",
        "MemorySink": "sending.sink",
        "Outbound": "sending.sink",
        "Recorder": "recorder",
        "init": "start",
    },
)
