"""Commands about bundles: ``jumok inspect`` and ``jumok evaluate``."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Unpack, get_args

import click

from jumok_proto.flags import decoding_flags
from jumok_proto.options import Options
from jumok_serve.bundle import describe
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.cli.settings import Configuration
from jumok_serve.evaluation import parallel_text
from jumok_serve.evaluation.parallel_text import read_parallel
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.translator import Translator

BUNDLE = click.Path(path_type=Path)  # opening it says what is wrong, and the way out
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _setting(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make the option that means the same as a setting of a server."""
    field = Configuration.model_fields[name]
    spelled = f"--{name}/--no-{name}" if field.annotation is bool else f"--{name}"
    types: dict[type, click.ParamType[Any]] = {bool: click.BOOL, str: click.Choice(get_args(field.annotation))}
    kind = types.get(type(field.default), click.IntRange(min=1))
    return click.option(spelled, type=kind, default=field.default, show_default=True, help=field.description)


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("--all", "whole", is_flag=True, help="Print graphs, checks, origin and files too.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole manifest as one JSON object.")
def inspect(*, bundle: Path, whole: bool, as_json: bool) -> None:
    """Check BUNDLE and print its languages, settings, precisions and scores."""
    opened = Bundle.open(bundle)
    if as_json:
        click.echo(json.dumps(describe.as_json(opened), ensure_ascii=False, indent=2))
    else:
        click.echo(describe.describe(opened, whole=whole))


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("--source", required=True, type=FILE, help="Sentences to translate, one per line; plain or .gz.")
@click.option("--reference", required=True, type=FILE, help="Reference translations, one per line; plain or .gz.")
@click.option("--source-language", metavar="TAG", help="Language of the sentences, if the bundle has several.")
@click.option("--target-language", metavar="TAG", help="Language of the translations, if the bundle has several.")
@click.option(
    "--bleu-tokenizer",
    type=click.Choice(parallel_text.NAMES),
    help="sacreBLEU's tokenizer for BLEU.  [default: by the target language: zh; ja-mecab and ko-mecab if installed, "
    "else char; none for Thai and others without spaces, which have chrF alone; else 13a]",
)
@decoding_flags
@_setting("device")
@_setting("precision")
@_setting("replicas")
@_setting("threads")
@_setting("shortlist")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File for the translations.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    *,
    bundle: Path,
    source: Path,
    reference: Path,
    source_language: str | None,
    target_language: str | None,
    bleu_tokenizer: str | None,
    device: str,
    precision: str,
    replicas: int | None,
    threads: int | None,
    shortlist: bool,
    output: Path | None,
    as_json: bool,
    **options: Unpack[Options],
) -> None:
    """Translate a test set with BUNDLE, and score it with BLEU and chrF.

    Sentences that are too long for the model are truncated and counted. The signatures are those of sacreBLEU. Options
    that are not given have the bundle's defaults.
    """
    from jumok_serve.evaluation import evaluation  # noqa: PLC0415 - needs sacrebleu, an extra

    if bleu_tokenizer is not None:
        try:
            parallel_text.check_bleu_tokenizer(bleu_tokenizer)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    sources, references = read_parallel(source, reference)
    decoding = DecodingOptions(**options)
    with (
        Translator(
            bundle, precision=precision, device=device, replicas=replicas, threads=threads, shortlist=shortlist
        ) as translator,
        click.progressbar(
            length=len(sources), label="translating", file=sys.stderr, hidden=not sys.stderr.isatty()
        ) as bar,
    ):
        parameters = TranslationParameters(
            options=decoding, source_language=source_language, target_language=target_language, truncate=True
        )
        submit = partial(translator.submit, parameters=parameters)
        target = translator.manifest.languages.direction(source_language, target_language).target
        if bleu_tokenizer is None:
            bleu_tokenizer = parallel_text.bleu_tokenizer(target)
        scores, translations = evaluation.evaluate(submit, sources, references, bar.update, tokenizer=bleu_tokenizer)
        model = f"{translator.manifest.name} {translator.manifest.version}"
        setting = {"precision": translator.precision, "device": translator.device, "shortlist": translator.shortlisted}
    if output is not None:
        lines = (" ".join(translation.text.splitlines()) for translation in translations)
        output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"model": model, **setting, **asdict(scores)}, ensure_ascii=False))
        return
    rate = scores.sentences / scores.duration_s
    click.echo(f"{model} ({setting['precision']}, {setting['device']}{', shortlist' if shortlist else ''})")
    if scores.bleu is None:
        click.echo(f"BLEU none: sacreBLEU has no tokenizer for {target}; name one with --bleu-tokenizer, or take chrF")
    else:
        click.echo(f"BLEU {scores.bleu:.2f}  {scores.bleu_signature}")
    click.echo(f"chrF {scores.chrf:.2f}  {scores.chrf_signature}")
    click.echo(
        f"{scores.sentences} sentences ({scores.truncated} cut), {scores.output_tokens} tokens, "
        f"{scores.duration_s:.1f} s: {rate:.1f} sentences per second"
    )
