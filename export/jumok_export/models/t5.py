"""T5: a Transformer without absolute positions and biases, whose attention depends on distance."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from jumok_export.models.encoder_decoder import EncoderDecoder
from jumok_export.models.layers import Activation, DecoderLayer, EncoderLayer, LayerSizes
from jumok_export.models.positions import RelativePositions


class RMSNorm(nn.Module):
    """Division by the root of the mean square: "Root Mean Square Layer Normalization" (Zhang and Sennrich, 2019).

    Args:
        width: of what is normalised.
        epsilon: added to mean squares.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """The normalised `x`, of its shape."""
        # Written as ONNX Runtime recognises it: nn.RMSNorm is exported as seven operators that are not fused.
        return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + self.epsilon) * self.weight


@dataclass(frozen=True, kw_only=True)
class T5Sizes:
    """What a T5 is made of.

    Attributes:
        vocabulary: number of tokens, of both sides.
        width: d_model.
        heads: attention heads.
        head_width: width of a head's keys and values; all heads' need not add up to `width`.
        feed_forward: width of the hidden layer between attention layers.
        encoder_layers: layers of the encoder.
        decoder_layers: layers of the decoder.
        buckets: of relative positions.
        max_distance: from here on distances are not told apart.
        epsilon: added to mean squares before normalising by them.
        activation: of the feed-forward layer.
        gated: whether the activation gates a second linear layer's output, as since version 1.1.
        share_embeddings: one embedding for source and target.
        tie_output: the output projection is the target embedding.
        scale_output: whether what enters the output projection is divided by sqrt(width), as before version 1.1.
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
    scale_output: bool = True

    @property
    def layer(self) -> LayerSizes:
        """Of the layers of encoder and decoder."""
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
        """The normalisation of layers and of the output of encoder and decoder."""
        return RMSNorm(width, self.epsilon)


class T5(EncoderDecoder):
    """The model of "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel, 2020).

    Raises:
        ValueError: there are too few buckets or distances.
    """

    def __init__(self, sizes: T5Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.target_embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.source_embedding = (
            self.target_embedding if sizes.share_embeddings else nn.Embedding(sizes.vocabulary, sizes.width)
        )
        positions = partial(RelativePositions, sizes.heads, buckets=sizes.buckets, max_distance=sizes.max_distance)
        self.encoder_positions = positions(bidirectional=True)
        self.decoder_positions = positions(bidirectional=False)
        self.encoder = nn.ModuleList(EncoderLayer(sizes.layer) for _ in range(sizes.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(sizes.layer) for _ in range(sizes.decoder_layers))
        self.encoder_norm = sizes.norm(sizes.width)
        self.decoder_norm = sizes.norm(sizes.width)
        self.output = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        if sizes.tie_output:
            self.output.weight = self.target_embedding.weight

    def embed_source(self, source_ids: Tensor) -> Tensor:
        """Embeddings of sources [B, S]; [B, S, width]."""
        embedded: Tensor = self.source_embedding(source_ids)
        return embedded

    def embed_target(self, token_ids: Tensor, places: Tensor) -> Tensor:
        """Embeddings of target tokens, wherever they are; [*token_ids.shape, width]."""
        embedded: Tensor = self.target_embedding(token_ids)
        return embedded

    def encoder_position_bias(self, places: Tensor) -> Tensor:
        """What distance adds to the encoder's attention scores, in every layer; [heads, S, S]."""
        bias: Tensor = self.encoder_positions(places, places)
        return bias

    def decoder_position_bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        """What distance adds to the decoder's self-attention scores, in every layer; [..., heads, Tq, Tk]."""
        bias: Tensor = self.decoder_positions(queries, keys)
        return bias

    def logits(self, decoded: Tensor) -> Tensor:
        """The output projection."""
        projected: Tensor = self.output(decoded * self.sizes.width**-0.5 if self.sizes.scale_output else decoded)
        return projected
