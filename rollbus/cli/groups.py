"""A noun with its verbs: the help shows the whole first sentence of each; a misspelled one gets the nearest name."""

import difflib
from collections.abc import Iterable

import click

WHOLE_SENTENCE = 1000
"""Characters; click itself cuts the sentence at the end of the line."""


class Verbs(click.Group):
    """The group that every noun is."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the verbs; a long sentence continues on the next line."""
        rows = [
            (name, command.get_short_help_str(WHOLE_SENTENCE))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; raises a UsageError that names the nearest verb."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(describe_unknown(args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def describe_unknown(name: str, names: Iterable[str]) -> str:
    """Return the message for a command that does not exist, with the nearest name."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")
