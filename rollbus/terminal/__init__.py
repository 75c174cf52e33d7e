"""What people see of a command: its output, its progress, its log lines, and a line while it is silent.

Any room of the shell may print through it; it imports none of them. Read first: `output`.
"""
