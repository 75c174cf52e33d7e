"""What a recorded stream in flight keeps: its bytes are held until it has ended, and read then.

python -m benchmarks.capture.memory
"""

import gc
import tracemalloc
from typing import Any

from benchmarks.capture.answer import MODEL, prompt, streamed
from benchmarks.capture.variants import Clients, bare, ours

STREAMS = 8
KIB = 1024


def kept_bytes_of_stream(clients: Clients) -> float:
    """Return the bytes that each of several streams keeps, all of them read but for the last event."""
    options = {"model": MODEL, "messages": prompt(), "logprobs": True, "stream": True}
    for _ in range(2):  # what is made once is not a stream's
        list(clients.create(**options))
    gc.collect()
    tracemalloc.start()
    streams: list[Any] = [clients.create(**options) for _ in range(STREAMS)]
    for stream in streams:
        events = iter(stream)
        while next(events).choices[0].finish_reason is None:
            pass
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for stream in streams:
        stream.close()
    return size / STREAMS


def main() -> None:
    """Print both, and what recording adds as a share of the stream's bytes."""
    recorded_bytes, bare_bytes, size = kept_bytes_of_stream(ours()), kept_bytes_of_stream(bare()), len(streamed())
    print(
        f"a stream in flight of {size / KIB:.0f} KiB: recording keeps {(recorded_bytes - bare_bytes) / KIB:.0f} KiB, "
        f"{(recorded_bytes - bare_bytes) / size:.2f} of its bytes (target: at most 2)"
    )


if __name__ == "__main__":
    main()
