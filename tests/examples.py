"""How many examples Hypothesis and the simulations try: all, or a share where a run asks only whether the code runs.

TESTS_EXAMPLES_PERCENT is that share. The runs on Python 3.11 set it: whether a property holds is decided on 3.12.
"""

import os

PERCENT = int(os.environ.get("TESTS_EXAMPLES_PERCENT", "100"))
FEWEST = 3


def count_examples(most: int) -> int:
    """Return how many of `most` examples this run tries."""
    return max(most * PERCENT // 100, min(FEWEST, most))
