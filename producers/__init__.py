"""The SDK that agents import: what they do becomes events on Kafka, and nothing that breaks here reaches them.

    rb = rollbus.init(bootstrap_servers="kafka:9092", producer="shop-agent")
    client = rb.wrap(OpenAI())
    with rb.episode(task="refund", example_id="case-17") as episode:
        ...                                      # every call of the client is a turn
    rb.feedback(episode.id, reward=1.0, key="thumbs")

In reading order: start (init) and settings, recorder (the wiring), open_episodes, scope, context, episode, feedback,
openai_client, capture, surface (and one file for each API that is captured), answer, attributes, openai_stream,
late_turns, turn_record, verdict, prompt_log, redaction, sampling, outbox, delivery (the queue), courier (its thread),
sink, kafka_sink, spool, spool_sink, process_hooks, tracing, guard, counters, metrics. `integrations` are the
frameworks' hooks, `proxy` is for programs that cannot be changed.
"""

from typing import TYPE_CHECKING

from rollbus.schemas.lazy import lazy_names

if TYPE_CHECKING:
    from rollbus.producers.episode import Episode
    from rollbus.producers.recorder import Recorder
    from rollbus.producers.sink import EventSink, MemorySink, Outbound
    from rollbus.producers.start import init

__all__ = ["Episode", "EventSink", "MemorySink", "Outbound", "Recorder", "init"]

__getattr__ = lazy_names(
    __name__,
    {
        "Episode": "episode",
        "EventSink": "sink",
        "MemorySink": "sink",
        "Outbound": "sink",
        "Recorder": "recorder",
        "init": "start",
    },
)
