"""Random models of every family, at several scales of their weights: the larger, the less exact is fp32."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from jumok_export.bundles.variants import Written, write_variants
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.tracing import export_graphs
from jumok_export.importers.huggingface import build_model
from jumok_export.models.attention import scaled_queries
from jumok_export.models.recurrent import RecurrentSizes, make_recurrent
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_export.quantization.calibration import Calibration, GreedySearch
from jumok_export.verification.agreement import SourceTexts, random_sources
from jumok_export.verification.samples import InputBounds
from tests.support.checkpoints.random_checkpoints import config_of, random_checkpoint

SCALES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Factors of the weights."""
VOCABULARY = 97


class RandomModel(NamedTuple):
    """A model within `scaled_queries`, as an export has it, and the bounds of its inputs."""

    model: nn.Module
    bounds: InputBounds

    def graphs(self) -> dict[str, Graph]:
        """Trace the model."""
        return export_graphs(self.model, self.bounds.source_vocabulary, self.bounds.target_vocabulary)


class OwnGRU(nn.Module):
    """A model of PyTorch's own recurrent layers, without attention."""

    def __init__(self, width: int = 48, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.writer = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Encode sources [B, S]."""
        states, _ = self.reader(self.embedding(source_ids))
        return {}, {"hidden": states[torch.arange(source_ids.shape[0]), source_lengths - 1]}

    def empty_state(self) -> dict[str, Tensor]:
        """One row of zeros."""
        return {"hidden": torch.zeros(1, self.output.in_features)}

    def step(self, token_ids: Tensor, _: Any, parents: Tensor, __: Any, ___: Any, state: Any) -> Any:
        """Decode one token of every row."""
        written, hidden = self.writer(self.embedding(token_ids)[:, None], state["hidden"][parents][None])
        return self.output(written[:, 0]), {"hidden": hidden[0]}

    def score(self, sources: Tensor, lengths: Tensor, start: Tensor, targets: Tensor, ends: Tensor) -> Tensor:
        """Score targets [B, T]."""
        before = torch.cat((start[:, None], targets[:, :-1]), dim=1)
        written, _ = self.writer(self.embedding(before), self.encode(sources, lengths)[1]["hidden"][None])
        scores = self.output(written).log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]
        within: Tensor = scores.masked_fill(torch.arange(targets.shape[1]) >= ends[:, None], 0.0)
        return within


def _transformer(**options: Any) -> nn.Module:
    sizes = {"width": 64, "heads": 4, "feed_forward": 128, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.0}
    vocabularies = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "max_positions": 40}
    return Transformer(TransformerSizes(**{**sizes, **vocabularies, **options}))


def _recurrent(**options: Any) -> nn.Module:
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "embedding": 40, "width": 56}
    return make_recurrent(RecurrentSizes(**{**sizes, "layers": 2, "dropout": 0.0, **options}))


def _imported(name: str) -> nn.Module:
    theirs = random_checkpoint(name)
    return build_model(config_of(theirs), theirs.state_dict()).model


OWN_FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "transformer-pre": _transformer,
    "transformer-post": lambda: _transformer(norm="post", activation="gelu", width=128, feed_forward=256),
    "lstm": lambda: _recurrent(cell="lstm", attention="general"),
    "gru": lambda: _recurrent(cell="gru", attention="bahdanau"),
    "rnn": lambda: _recurrent(cell="rnn", attention="none"),
    "own-gru": OwnGRU,
}
FAMILIES: Mapping[str, Callable[[], nn.Module]] = OWN_FAMILIES | {
    name: partial(_imported, name)
    for name in ("marian-uneven", "m2m100", "bart", "mbart-uneven", "t5", "t5-gated-and-untied")
}


def random_model(family: str, scale: float = 1.0) -> RandomModel:
    """Make a model of a family; its matrices are multiplied by `scale`."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = copy.deepcopy(FAMILIES[family]()).eval().requires_grad_(False)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)  # biases and norms of a trained model
    scaled_queries(model).__enter__()  # for good
    own = family in OWN_FAMILIES
    vocabulary, longest = (VOCABULARY, 30) if own else (37, 18)
    bounds = InputBounds(
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        start=2,
        pad=1,
        max_source_length=longest,
        max_target_length=longest,
    )
    return RandomModel(model, bounds)


def written(
    case: RandomModel,
    folder: Path,
    precisions: Sequence[str],
    *,
    graphs: Mapping[str, Graph] | None = None,
    texts: int = 10,
    calibrator: Callable[[Mapping[str, Graph]], Calibration] | None = None,
) -> Written:
    """Write and verify the precisions of a random model, with a number of random texts."""
    bounds = case.bounds
    search = GreedySearch(start=bounds.start, eos=(2,), max_length=bounds.max_target_length)
    sources = random_sources(bounds.source_vocabulary, (0, 1, 2), 8)[:texts]
    return write_variants(
        case.model,
        graphs or case.graphs(),
        bounds,
        folder,
        precisions,
        calibrator=calibrator,
        listed=False,
        unverified=False,
        texts=SourceTexts(sources=sources, search=search, pad=bounds.pad, described="random tokens"),
        progress=lambda _: None,
    )
