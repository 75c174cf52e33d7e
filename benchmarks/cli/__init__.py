"""What a command costs before it does anything.

run      the processor time of commands that people and tests start often, beside Python and its libraries alone
"""
