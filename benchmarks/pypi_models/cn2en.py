"""cn2en: Chinese characters to English words, a GRU without attention."""

from importlib import import_module
from pathlib import Path

from benchmarks.pypi_models.package import Answer, Mapped, Package
from jumok_export.models.foreign_cells import load_pytorch
from jumok_export.models.recurrent import RecurrentSizes, make_recurrent
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

START, END = range(2)
LONGEST_SOURCE, LONGEST = 64, 128


def mapped(folder: Path) -> Mapped:
    """Map the package's model. Its decoder applies ReLU to embeddings: here the embeddings have it applied."""
    package = import_module("cn2en.model").Model()
    encoder, decoder = package.encoder, package.decoder
    lists = [
        [lang.index2word[number] or "<empty>" for number in range(lang.n_words)]
        for lang in (package.input_lang, package.output_lang)
    ]
    (_, width), (words, _) = encoder.embedding.weight.shape, decoder.embedding.weight.shape
    sizes = RecurrentSizes(
        source_vocabulary=len(lists[0]), target_vocabulary=words, cell="gru", attention="none",
        embedding=width, width=width, bidirectional=False,
    )  # fmt: skip
    model = make_recurrent(sizes)
    load_pytorch(model.encoder.layers, encoder.gru.state_dict())
    load_pytorch(model.decoder, decoder.gru.state_dict())
    model.source_embedding.weight.data = encoder.embedding.weight.data
    model.target_embedding.weight.data = decoder.embedding.weight.data.relu()
    model.output.load_state_dict(decoder.out.state_dict())
    return Mapped(
        model=model,
        tokenizer=WordListTokenizer("character", *lists, target_unit="word", special_tokens=["SOS", "EOS", "<empty>"]),
        special_tokens=SpecialTokens(pad=START, start=START, eos=(END,)),
        languages=Languages.of_pair("zh", "en", suffix=(END,)),
        limits=Limits(max_source_length=LONGEST_SOURCE, max_target_length=LONGEST),
    )


def answer(folder: Path) -> Answer:
    """The package's own method."""
    own: Answer = import_module("cn2en.model").Model().translate
    return own


PACKAGE = Package(requirement="cn2en==0.0.118", kind="GRU without attention", mapped=mapped, answer=answer)
