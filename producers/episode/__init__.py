"""Episodes as this process sees them: ids, sequence numbers and events.

In: exchanges, tool calls, rewards and ends. Out: encoded events in the delivery queue, through `outbox`.
Read first: episode, then open_episodes, scope (`with` and decorators), context, feedback, late_turns.
"""
