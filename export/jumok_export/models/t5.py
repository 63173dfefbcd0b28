"""T5: a Transformer with relative positions and without biases."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from jumok_export.models.encoder_decoder import EncoderDecoder
from jumok_export.models.layers import Activation, DecoderLayer, EncoderLayer, LayerSizes
from jumok_export.models.positions import RelativePositions


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich, 2019).

    Args:
        epsilon: number added to mean squares.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` [..., width]."""
        # ONNX Runtime fuses this form; nn.RMSNorm is exported as seven operators, which it does not fuse.
        return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + self.epsilon) * self.weight


@dataclass(frozen=True, kw_only=True)
class T5Sizes:
    """Sizes and options of a T5; see also `TransformerSizes`.

    Attributes:
        vocabulary: number of tokens, for source and target.
        head_width: width of a head's keys and values; `heads` * `head_width` may differ from `width`.
        max_distance: distance from which all distances share a bucket.
        epsilon: number added to mean squares in normalisations.
        gated: True to multiply the activation with a second linear layer's output, as since version 1.1.
        shared_positions: True if all layers of a stack share a bias of relative positions; else each has its own.
        scale_output: True to divide the output projection's input by sqrt(width), as before version 1.1.
    """

    vocabulary: int
    width: int
    heads: int
    head_width: int
    feed_forward: int
    encoder_layers: int
    decoder_layers: int
    buckets: int = 32
    max_distance: int = 128
    epsilon: float = 1e-6
    activation: Activation = "relu"
    gated: bool = False
    share_embeddings: bool = True
    tie_output: bool = True
    shared_positions: bool = True
    scale_output: bool = True

    @property
    def layer(self) -> LayerSizes:
        """Sizes of the layers of encoder and decoder."""
        return LayerSizes(
            width=self.width,
            heads=self.heads,
            feed_forward=self.feed_forward,
            head_width=self.head_width,
            scale=1.0,
            make_norm=self.norm,
            activation=self.activation,
            gated=self.gated,
            bias=False,
        )

    def norm(self, width: int) -> RMSNorm:
        """Make the normalisation of layers and of the outputs of encoder and decoder."""
        return RMSNorm(width, self.epsilon)


class T5(EncoderDecoder):
    """The model of "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel, 2020).

    mT5 and umT5 are such models too.

    Raises:
        ValueError: too few buckets or distances.
    """

    def __init__(self, sizes: T5Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.target_embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.source_embedding = (
            self.target_embedding if sizes.share_embeddings else nn.Embedding(sizes.vocabulary, sizes.width)
        )
        positions = partial(RelativePositions, sizes.heads, buckets=sizes.buckets, max_distance=sizes.max_distance)
        encoder_biases, decoder_biases = (
            (1, 1) if sizes.shared_positions else (sizes.encoder_layers, sizes.decoder_layers)
        )
        self.encoder_positions = nn.ModuleList(positions(bidirectional=True) for _ in range(encoder_biases))
        self.decoder_positions = nn.ModuleList(positions(bidirectional=False) for _ in range(decoder_biases))
        self.encoder = nn.ModuleList(EncoderLayer(sizes.layer) for _ in range(sizes.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(sizes.layer) for _ in range(sizes.decoder_layers))
        self.encoder_norm = sizes.norm(sizes.width)
        self.decoder_norm = sizes.norm(sizes.width)
        self.output = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        if sizes.tie_output:
            self.output.weight = self.target_embedding.weight

    def embed_source(self, source_ids: Tensor) -> Tensor:
        """See `EncoderDecoder`."""
        embedded: Tensor = self.source_embedding(source_ids)
        return embedded

    def embed_target(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """See `EncoderDecoder`; positions do not matter."""
        embedded: Tensor = self.target_embedding(token_ids)
        return embedded

    def encoder_position_biases(self, positions: Tensor) -> Sequence[Tensor | None]:
        """See `EncoderDecoder`."""
        return self._of_layers([bias(positions, positions) for bias in self.encoder_positions], len(self.encoder))

    def decoder_position_biases(self, queries: Tensor, keys: Tensor) -> Sequence[Tensor | None]:
        """See `EncoderDecoder`."""
        return self._of_layers([bias(queries, keys) for bias in self.decoder_positions], len(self.decoder))

    def _of_layers(self, biases: list[Tensor], layers: int) -> list[Tensor]:
        return biases * layers if self.sizes.shared_positions else biases

    def logits(self, decoded: Tensor) -> Tensor:
        """See `EncoderDecoder`."""
        projected: Tensor = self.output(decoded * self.sizes.width**-0.5 if self.sizes.scale_output else decoded)
        return projected
