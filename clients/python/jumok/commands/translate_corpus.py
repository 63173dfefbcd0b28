"""``jumok translate-corpus``: translate files of any size, in blocks that survive the end of the process."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from jumok import Options
from jumok.commands._line_requests import Runner, make_runner
from jumok.commands._options import (
    bundle_settings,
    exclude_server_options,
    language_options,
    limit_options,
    markup_options,
    open_bundle,
    open_target,
    sentence_options,
    target_options,
    term_options,
    was_given,
)
from jumok.commands.corpus.inputs import FORMATS, find_sources, is_one_file
from jumok.commands.corpus.job import Job
from jumok.commands.corpus.rows import Columns
from jumok.commands.corpus.run import Translate, run_job, translate_here
from jumok_proto.flags import decoding_flag, decoding_flags
from jumok_proto.markup import MarkupRules
from jumok_proto.text_options import splits_sentences

BLOCK_ROWS = 2048


@click.command("translate-corpus")
@click.argument("inputs", metavar="IN...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write, or folder for several files; it appears when all is finished.",
)
@click.option(
    "--format", "format_name", type=click.Choice(FORMATS), help="Format of all files.  [default: by their names]"
)
@click.option("--column", default="text", show_default=True, help="Column to translate.")
@click.option("--out-column", default="translation", show_default=True, help="Column to add, for translations.")
@click.option("--score-column", metavar="NAME", help="Column to add, for the scores of translations.")
@click.option(
    "--block-rows",
    type=click.IntRange(1, 2**20),
    default=BLOCK_ROWS,
    show_default=True,
    help="Rows that are finished, and kept, together.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Ray cluster whose actors translate with --bundle: its address; auto: the running one; local: one of this "
    "machine, for this job.",
)
@click.option("--ray-actors", type=click.IntRange(1), help="Most actors.  [default: as many as there is room for]")
@click.option("--ray-cpus", type=click.IntRange(1), default=1, show_default=True, help="Cores of each actor.")
@target_options
@language_options
@sentence_options
@markup_options
@term_options
@decoding_flag("num_hypotheses")
@decoding_flags
@limit_options
@click.pass_context
def translate_corpus(
    context: click.Context,
    /,
    *,
    inputs: tuple[Path, ...],
    out: Path,
    format_name: str | None,
    column: str,
    out_column: str,
    score_column: str | None,
    block_rows: int,
    ray: str | None,
    ray_actors: int | None,
    ray_cpus: int,
    server: str,
    bundle: Path | None,
    model: str,
    split_sentences: bool | None,
    timeout_s: float,
    **settings: Any,
) -> None:
    """Translate the rows of files, or of all files in a folder, into files of the same format.

    Reads lines of text, and a column of JSONL or, with the extra corpus, Parquet; text and JSONL also compressed with
    gzip. Rows keep their order and their other columns. A row that cannot be translated has an empty line or null, and
    a reason in OUT.errors.jsonl. After an interruption, even by SIGKILL, the same command goes on from the finished
    blocks, which are in OUT.unfinished until then. Exits with code 1 if no row could be translated.
    """
    options = cast("Options", settings)
    columns = Columns(
        text=column,
        translation=out_column,
        score=score_column,
        several=(options.get("num_hypotheses") or 1) > 1,
    )
    if len({column, *columns.added}) <= len(columns.added):
        raise click.UsageError("--column, --out-column and --score-column need different names")
    sources = find_sources(inputs, out, format_name, columns)
    settings["split_sentences"] = splits_sentences(
        split_sentences, attention=False, target_prefix=None, options=options
    )
    lasting = {
        **{name: value for name, value in settings.items() if value is not None},
        "markup_rules": repr(settings["markup_rules"] or MarkupRules()),
        **bundle_settings(context),
        "model": model,
        "column": column,
        "out_column": out_column,
        "score_column": score_column,
    }
    job = Job(out, sources, is_file=is_one_file(inputs))

    runner_settings: dict[str, Any] = {"model": model, "timeout_s": timeout_s, **settings}

    @contextmanager
    def open_runner() -> Iterator[Runner]:
        with open_target(context, server, bundle) as translator:
            yield make_runner(translator, **runner_settings)

    translate: Translate
    if ray is None:
        if ray_actors is not None or was_given(context, "ray_cpus"):
            raise click.UsageError("--ray-actors and --ray-cpus need --ray, the address of a cluster")
        translate = partial(translate_here, open_runner=open_runner)
    else:
        exclude_server_options(context)
        if bundle is None:
            raise click.UsageError("--ray needs --bundle, which each machine of the cluster has: servers need no Ray")
        try:
            from jumok.commands.corpus.cluster import Cluster, translate_on_cluster  # noqa: PLC0415 - needs an extra
        except ModuleNotFoundError as error:
            raise click.UsageError(f"--ray needs {error.name}; install it with: pip install 'jumok[ray]'") from error
        chosen = {"replicas": 1, "threads": ray_cpus, **bundle_settings(context)}
        translate = partial(
            translate_on_cluster,
            cluster=Cluster(address=ray, actors=ray_actors, cpus=ray_cpus),
            open_runner=partial(_open_in_actor, bundle.resolve(), chosen, runner_settings),
        )
    if not run_job(job, lasting, translate, block_rows=block_rows):
        context.exit(1)


def _open_in_actor(bundle: Path, chosen: dict[str, Any], runner_settings: dict[str, Any]) -> Runner:
    """Open a bundle in an actor, which is closed with its process."""
    return make_runner(open_bundle(bundle, **chosen), **runner_settings)
