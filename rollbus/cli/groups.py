"""A noun with its verbs: the help shows the whole first sentence of each; a misspelled one gets the nearest name.

No command takes a blank text, as of a variable of the shell that is not set: without its filter it would take all.
"""

import difflib
from collections.abc import Iterable

import click
from click.core import ParameterSource

WHOLE_SENTENCE = 1000
"""Characters; click itself cuts the sentence at the end of the line."""


class Verb(click.Command):
    """What every command is that has no verbs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; raises BadParameter for a blank text."""
        rest = super().parse_args(ctx, args)
        _refuse_blank_texts(ctx)
        return rest


class Verbs(click.Group):
    """The group that every noun is."""

    command_class = Verb

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; raises BadParameter for a blank text."""
        rest = super().parse_args(ctx, args)
        _refuse_blank_texts(ctx)
        return rest

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


def _refuse_blank_texts(ctx: click.Context) -> None:
    for parameter in ctx.command.params:
        name = parameter.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and isinstance(parameter.type, click.types.StringParamType):
            value = ctx.params[name]
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.strip():
                    raise click.BadParameter(f"{text!r} is blank; give a text, or leave it out", ctx, parameter)


def describe_unknown(name: str, names: Iterable[str]) -> str:
    """Return the message for a command that does not exist, with the nearest name."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")
