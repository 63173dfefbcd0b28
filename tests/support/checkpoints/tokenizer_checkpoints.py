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

DATA = Path(__file__).parents[2] / "data"
MARIAN_CODES = (">>deu<<", ">>kor<<", ">>jpn<<", ">>cmn_Hans<<")
NLLB_CODES = ["deu_Latn", "eng_Latn", "jpn_Jpan", "kor_Hang"]
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


def change(folder: Path, **settings: Any) -> None:
    """Set fields of tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    write(path, json.loads(path.read_text("utf-8")) | settings)


def numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def save_marian(folder: Path, *, codes: Sequence[str] = (), separate: bool = False) -> None:
    source, target = pieces(lines("en", "ko"), 200), pieces(lines("de", "ja"), 240)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    special = ["</s>", "<unk>"]
    # A tenth of the pieces has no number, as where a vocabulary is cut.
    kept = [[token for at, token in enumerate(spellings(model)) if at % 10 != 9] for model in (source, target)]
    if separate:
        write(folder / "vocab.json", numbered([*special, "<pad>", *codes, *kept[0]]))
        write(folder / "target_vocab.json", numbered([*special, "<pad>", *kept[1]]))
    else:
        write(folder / "vocab.json", numbered([*special, *kept[0], *kept[1], *codes, "<pad>"]))
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    write(folder / "tokenizer_config.json", settings | ({} if codes else {"source_lang": "en", "target_lang": "de"}))


def save_m2m100(folder: Path) -> None:
    model = pieces(lines(*ALL), 300, model_type="bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    write(folder / "vocab.json", numbered(["<s>", "<pad>", "</s>", "<unk>", *spellings(model)]))
    files: list[Any] = [str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
    transformers.M2M100Tokenizer(*files).save_pretrained(folder)


def scored(special: Sequence[str], model: bytes) -> list[tuple[str, float]]:
    """Vocabulary of a unigram model, with special tokens first and with the best score, 0."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    known = [(processor.IdToPiece(number), processor.GetScore(number)) for number in range(3, len(processor))]
    return [*((token, 0.0) for token in special), *known]


def save_nllb(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=320, show_progress=False)
    tokenizer.train_from_iterator(lines(*ALL), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = numbered(["<s>", "<pad>", "</s>", "<unk>", *model["vocab"]])
    merges: Any = [tuple(merge) for merge in model["merges"]]
    transformers.NllbTokenizer(vocabulary, merges, additional_special_tokens=NLLB_CODES).save_pretrained(folder)


def save_mbart(folder: Path) -> None:
    vocabulary = scored(["<s>", "<pad>", "</s>", "<unk>"], pieces(lines(*ALL), 320))
    transformers.MBartTokenizer([*vocabulary, ("<mask>", 0.0)]).save_pretrained(folder)


def save_mbart50(folder: Path) -> None:
    vocabulary = scored(["<unk>", "<s>", "</s>"], pieces(lines(*ALL), 320))
    transformers.MBart50Tokenizer(vocabulary).save_pretrained(folder)


def save_bart(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines(*ALL), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = numbered(["<s>", "<pad>", "</s>", "<unk>", *model["vocab"], "<mask>"])
    merges: Any = [tuple(merge) for merge in model["merges"]]
    transformers.BartTokenizer(vocabulary, merges).save_pretrained(folder)


def save_t5(folder: Path) -> None:
    vocabulary = scored(["<pad>", "</s>", "<unk>"], pieces(lines(*ALL), 320))
    transformers.T5Tokenizer(vocabulary, extra_ids=10).save_pretrained(folder)


def save_generic(folder: Path) -> None:
    """Make a tokenizer.json without a class, with a normalizer, a prompt around texts and an added word."""
    tokenizer = Tokenizer(models.Unigram(scored(["<pad>", "</s>", "<unk>"], pieces(lines(*ALL), 320)), unk_id=2))
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


CHECKPOINTS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "marian": (save_marian, {"model_type": "marian"}),
    "marian-codes": (lambda folder: save_marian(folder, codes=MARIAN_CODES), {"model_type": "marian"}),
    "marian-separate": (lambda folder: save_marian(folder, separate=True), {"model_type": "marian"}),
    "m2m100": (save_m2m100, {"model_type": "m2m_100"}),
    "nllb": (save_nllb, {"model_type": "m2m_100"}),
    "mbart": (save_mbart, {"model_type": "mbart"}),
    "mbart50": (save_mbart50, {"model_type": "mbart"}),
    "bart": (save_bart, {"model_type": "bart"}),
    "t5": (save_t5, {"model_type": "t5", "task_specific_params": TASKS}),
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
