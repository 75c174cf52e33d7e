"""Hooks into agent frameworks: each module needs its framework, installed by the extra of the same name.

A hook gives structure: episodes, which part of the agent asked, tool calls, sub-agents. Tokens come from the wrapped
client beneath the framework, or from `rollbus proxy run`; the two are joined by the answer's id.
`structure` is what the hooks have in common.
"""
