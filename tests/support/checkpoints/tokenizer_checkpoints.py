"""Small tokenizers of every family, trained on the test data, in the files of checkpoints."""

import io
import json
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from jumok_export.importers.huggingface.tokenizer import ImportedTokenizer, read_tokenizer
from tests.support.data import DATA

MARIAN_CODES = (">>deu<<", ">>kor<<", ">>jpn<<", ">>cmn_Hans<<")
NLLB_CODES = ["deu_Latn", "eng_Latn", "jpn_Jpan", "kor_Hang"]
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
"""The first ids of all families that come from fairseq."""
ALL = ("en", "de", "ko", "ja")
"""Languages of the test data."""
UNUSED = 7
"""Number of model ids that the tokenizers do not have."""
TASKS = {
    "summarization": {"prefix": "summarize: ", "num_beams": 4},
    "translation_en_to_de": {"prefix": "translate English to German: "},
    "translation_en_to_fr": {"prefix": "translate English to French: "},
}


def lines(*languages: str) -> list[str]:
    """Repeat the sentences of these languages."""
    return [line for language in languages for line in (DATA / f"train.{language}").read_text("utf-8").splitlines() * 4]


def pieces(sentences: Sequence[str], size: int, **options: Any) -> bytes:
    """Return the content of a SentencePiece model, which the first call with these arguments trains."""
    return _pieces(tuple(sentences), size, tuple(sorted(options.items())))


@cache
def _pieces(sentences: tuple[str, ...], size: int, options: tuple[tuple[str, Any], ...]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **dict(options),
    )
    return model.getvalue()


def spellings(model: bytes) -> list[str]:
    """Pieces of a SentencePiece model without its unknown, start and end pieces."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.IdToPiece(number) for number in range(3, processor.GetPieceSize())]


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def change(folder: Path, name: str = "tokenizer_config.json", /, **settings: Any) -> None:
    """Set fields of a JSON file."""
    write(folder / name, json.loads((folder / name).read_text("utf-8")) | settings)


def numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def save_marian(
    folder: Path,
    source: bytes,
    target: bytes,
    *,
    kept: Callable[[Sequence[str]], Sequence[str]] = list,
    codes: Sequence[str] = (),
    separate: bool = False,
    languages: tuple[str, str] | None = None,
) -> None:
    """Save SentencePiece models of both sides, and one vocabulary or two, which end with padding.

    Args:
        kept: gives the pieces of a model that have a number.
        codes: target languages such as ``>>deu<<``.
        languages: source and target as the tokenizer names them; None: it names none.
    """
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    named = {} if languages is None else {"source_lang": languages[0], "target_lang": languages[1]}
    special, sides = ["</s>", "<unk>"], [kept(spellings(model)) for model in (source, target)]
    if separate:
        write(folder / "vocab.json", numbered([*special, "<pad>", *codes, *sides[0]]))
        write(folder / "target_vocab.json", numbered([*special, "<pad>", *sides[1]]))
    else:
        write(folder / "vocab.json", numbered([*special, *sides[0], *sides[1], *codes, "<pad>"]))
    write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, **named},
    )


def save_m2m100(folder: Path, model: bytes) -> None:
    """Save a SentencePiece model and its numbers; the 100 languages follow them."""
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    write(folder / "vocab.json", numbered([*FAIRSEQ, *spellings(model)]))
    files: list[Any] = [str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
    transformers.M2M100Tokenizer(*files).save_pretrained(folder)


def scored(special: Sequence[str], model: bytes) -> list[tuple[str, float]]:
    """Vocabulary of a unigram model, with special tokens first and with the best score, 0."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    known = [(processor.IdToPiece(number), processor.GetScore(number)) for number in range(3, len(processor))]
    return [*((token, 0.0) for token in special), *known]


def byte_pairs(
    sentences: Sequence[str], size: int, split: pre_tokenizers.PreTokenizer, more: Sequence[str] = (), **options: Any
) -> tuple[dict[str, int], Any]:
    """Train byte pairs behind fairseq's special tokens; return ids by token, and the merges in order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, **options)
    tokenizer.train_from_iterator(sentences, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return numbered([*FAIRSEQ, *model["vocab"], *more]), [tuple(merge) for merge in model["merges"]]


def save_nllb(folder: Path, sentences: Sequence[str], size: int, codes: Sequence[str]) -> None:
    vocabulary = byte_pairs(sentences, size, pre_tokenizers.Metaspace())
    transformers.NllbTokenizer(*vocabulary, additional_special_tokens=list(codes)).save_pretrained(folder)


def save_bart(folder: Path, sentences: Sequence[str], size: int, more: Sequence[str] = (), **options: Any) -> None:
    """Save byte pairs of bytes."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    transformers.BartTokenizer(*byte_pairs(sentences, size, split, more, **options)).save_pretrained(folder)


def save_mbart(folder: Path, model: bytes, languages: Sequence[str] = ()) -> None:
    more = [(token, 0.0) for token in (*languages, "<mask>")]
    transformers.MBartTokenizer([*scored(FAIRSEQ, model), *more]).save_pretrained(folder)


def save_mbart50(folder: Path, model: bytes) -> None:
    transformers.MBart50Tokenizer(scored(["<unk>", "<s>", "</s>"], model)).save_pretrained(folder)


def save_pegasus(folder: Path, model: bytes) -> None:
    """Save pieces without the tokens that only pretraining uses."""
    vocabulary = scored(["<pad>", "</s>", "<unk>", "<mask_1>", "<mask_2>"], model)
    transformers.PegasusTokenizer(vocabulary, offset=2).save_pretrained(folder)


def save_t5(folder: Path, model: bytes, sentinels: int) -> None:
    """Save pieces with a number of ``<extra_id_...>``."""
    vocabulary = scored(["<pad>", "</s>", "<unk>"], model)
    transformers.T5Tokenizer(vocabulary, extra_ids=sentinels).save_pretrained(folder)


def save_small_marian(folder: Path, *, codes: Sequence[str] = (), separate: bool = False) -> None:
    """Save the models of two languages a side; a tenth of the pieces has no number, as where a vocabulary is cut."""

    def kept(every: Sequence[str]) -> list[str]:
        return [piece for at, piece in enumerate(every) if at % 10 != 9]

    sides = pieces(lines("en", "ko"), 200), pieces(lines("de", "ja"), 240)
    languages = None if codes else ("en", "de")
    save_marian(folder, *sides, kept=kept, codes=codes, separate=separate, languages=languages)


def unigrams() -> bytes:
    """A SentencePiece model of all languages."""
    return pieces(lines(*ALL), 320)


def save_generic(folder: Path) -> None:
    """Make a tokenizer.json without a class, with a normalizer, a prompt around texts and an added word."""
    tokenizer = Tokenizer(models.Unigram(scored(["<pad>", "</s>", "<unk>"], unigrams()), unk_id=2))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<start>"])
    tokenizer.add_tokens(["Schifffahrt"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A </s>", special_tokens=[("<start>", tokenizer.token_to_id("<start>")), ("</s>", 1)]
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"}
    write(folder / "tokenizer_config.json", settings | {"pad_token": "<pad>"})


ALPHABET = pre_tokenizers.ByteLevel.alphabet()
CHECKPOINTS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "marian": (save_small_marian, {"model_type": "marian"}),
    "marian-codes": (lambda folder: save_small_marian(folder, codes=MARIAN_CODES), {"model_type": "marian"}),
    "marian-separate": (lambda folder: save_small_marian(folder, separate=True), {"model_type": "marian"}),
    "m2m100": (
        lambda folder: save_m2m100(folder, pieces(lines(*ALL), 300, model_type="bpe")),
        {"model_type": "m2m_100"},
    ),
    "nllb": (lambda folder: save_nllb(folder, lines(*ALL), 320, NLLB_CODES), {"model_type": "m2m_100"}),
    "mbart": (lambda folder: save_mbart(folder, unigrams()), {"model_type": "mbart"}),
    "mbart50": (lambda folder: save_mbart50(folder, unigrams()), {"model_type": "mbart"}),
    "bart": (
        lambda folder: save_bart(folder, lines(*ALL), 420, ["<mask>"], initial_alphabet=ALPHABET),
        {"model_type": "bart"},
    ),
    "t5": (lambda folder: save_t5(folder, unigrams(), 10), {"model_type": "t5", "task_specific_params": TASKS}),
    "generic": (save_generic, {"model_type": "t5"}),
}
"""Function and config.json of each kind of checkpoint."""

DIRECTIONS = {"marian-codes": ("en", "deu"), "bart": ("en", "de"), "generic": ("en", "de")}
"""Languages of the kinds of checkpoints that do not name theirs."""


def load_reference(folder: Path, **options: Any) -> Any:
    """Load the tokenizer with transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)


def size_of(reference: Any) -> int:
    """Number of a model's ids for this tokenizer."""
    if type(reference).__name__ == "M2M100Tokenizer":
        return int(reference.encoder_size) + 100 + UNUSED
    return max(len(reference), len(getattr(reference, "target_encoder", ()))) + UNUSED


def read(
    folder: Path,
    size: int,
    source: str | None = None,
    target: str | None = None,
    *,
    forced_first: int | None = None,
    **config: Any,
) -> ImportedTokenizer:
    """Import the tokenizer for a model with a number of ids and fields of config.json."""
    return read_tokenizer(
        folder,
        json.loads((folder / "config.json").read_text("utf-8")) | config,
        source_language=source,
        target_language=target,
        source_vocabulary=size,
        target_vocabulary=size,
        forced_first=forced_first,
    )
