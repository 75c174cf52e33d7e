"""The type of options that take a number."""

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number within bounds, and neither NaN nor infinite: click lets NaN pass every bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails with the option's name."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
