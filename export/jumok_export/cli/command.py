"""Class of the commands that make bundles."""

import click

from jumok_export.installed import need


class ExportCommand(click.Command):
    """A command that has its help without the packages that it runs with.

    Commands import these packages when they run, because that takes seconds; missing ones are reported at once.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, after a check of the packages."""
        if not (ctx.resilient_parsing or {*self.get_help_option_names(ctx)} & {*args}):
            need("torch", "lightning", "onnx", "onnxruntime", "onnxscript", "matplotlib", "sacrebleu")
        return super().parse_args(ctx, args)
