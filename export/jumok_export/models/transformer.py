"""The Transformer of "Attention Is All You Need", with later options."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from jumok_export.models.encoder_decoder import CrossAttending, EncoderDecoder
from jumok_export.models.layers import Activation, DecoderLayer, EncoderLayer, LayerSizes
from jumok_export.models.positions import Positions, sinusoidal_positions


@dataclass(frozen=True, kw_only=True)
class TransformerSizes:
    """Sizes and options of a Transformer.

    Attributes:
        width: d_model.
        heads: attention heads; divides `width`.
        feed_forward: width of the hidden layer between attention layers.
        decoder_heads: attention heads of the decoder; default: `heads`.
        decoder_feed_forward: width of the decoder's hidden layers; default: `feed_forward`.
        max_positions: longest source or target, in tokens.
        norm: "pre" normalises a sub-layer's input (and the output of each stack), "post" normalises the residual sum,
            as in the paper.
        scale_embeddings: True to multiply embeddings by sqrt(width), as in section 3.4 of the paper.
        norm_embeddings: True to normalise the first layer's input.
        share_embeddings: True for one embedding of source and target, which needs one vocabulary.
        tie_output: True to use the target embedding as output projection.
        output_bias: True to add a bias to logits.
        dropout: dropout on embeddings and on every sub-layer's output, while training.
        attention_dropout: dropout on attention weights, while training.
        activation_dropout: dropout inside the feed-forward layer, while training.
    """

    source_vocabulary: int
    target_vocabulary: int
    width: int = 512
    heads: int = 8
    feed_forward: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    decoder_heads: int | None = None
    decoder_feed_forward: int | None = None
    max_positions: int = 256
    norm: Literal["pre", "post"] = "pre"
    activation: Activation = "relu"
    scale_embeddings: bool = True
    norm_embeddings: bool = False
    share_embeddings: bool = True
    tie_output: bool = True
    output_bias: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.share_embeddings and self.source_vocabulary != self.target_vocabulary:
            raise ValueError(
                "share_embeddings needs one vocabulary for both languages, got "
                f"{self.source_vocabulary} source and {self.target_vocabulary} target tokens"
            )

    @property
    def encoder_layer(self) -> LayerSizes:
        """Sizes of the encoder's layers."""
        return self._layer(self.heads, self.feed_forward)

    @property
    def decoder_layer(self) -> LayerSizes:
        """Sizes of the decoder's layers."""
        return self._layer(self.decoder_heads or self.heads, self.decoder_feed_forward or self.feed_forward)

    def _layer(self, heads: int, feed_forward: int) -> LayerSizes:
        return LayerSizes(
            width=self.width,
            heads=heads,
            feed_forward=feed_forward,
            norm=self.norm,
            activation=self.activation,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
        )


class TransformerParts(CrossAttending):
    """Embeddings with absolute positions, layers and output projection of a Transformer.

    Args:
        decoder_layer: constructor of a decoder layer, given its sizes.
        source_positions: positions of the source; default: sinusoidal.
        target_positions: positions of the target; default: sinusoidal.

    Raises:
        ValueError: the width does not suit the heads or sinusoidal positions.
    """

    def __init__(
        self,
        sizes: TransformerSizes,
        decoder_layer: Callable[[LayerSizes], nn.Module],
        *,
        source_positions: Positions | None = None,
        target_positions: Positions | None = None,
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding_scale = math.sqrt(sizes.width) if sizes.scale_embeddings else 1.0
        self.target_embedding = nn.Embedding(sizes.target_vocabulary, sizes.width)
        nn.init.normal_(self.target_embedding.weight, std=sizes.width**-0.5)
        if sizes.share_embeddings:
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = nn.Embedding(sizes.source_vocabulary, sizes.width)
            nn.init.normal_(self.source_embedding.weight, std=sizes.width**-0.5)
        if source_positions is None or target_positions is None:
            sinusoidal = Positions(sinusoidal_positions(sizes.max_positions, sizes.width))
        self.source_positions = source_positions or sinusoidal
        self.target_positions = target_positions or sinusoidal
        first_norm = nn.LayerNorm if sizes.norm_embeddings else nn.Identity
        self.source_norm = first_norm(sizes.width)
        self.target_norm = first_norm(sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(sizes.encoder_layer) for _ in range(sizes.encoder_layers))
        self.decoder = nn.ModuleList(decoder_layer(sizes.decoder_layer) for _ in range(sizes.decoder_layers))
        last_norm = nn.LayerNorm if sizes.norm == "pre" else nn.Identity
        self.encoder_norm = last_norm(sizes.width)
        self.decoder_norm = last_norm(sizes.width)
        self.output = nn.Linear(sizes.width, sizes.target_vocabulary, bias=sizes.output_bias)
        if sizes.output_bias:
            nn.init.zeros_(self.output.bias)
        if sizes.tie_output:
            self.output.weight = self.target_embedding.weight
        else:
            nn.init.xavier_uniform_(self.output.weight)

    def embed_source(self, source_ids: Tensor) -> Tensor:
        """See `CrossAttending`."""
        embedded = self.source_embedding(source_ids) * self.embedding_scale
        entered: Tensor = self.dropout(self.source_norm(embedded + self.source_positions.of_sequence(source_ids)))
        return entered

    def embed_target(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """See `CrossAttending`."""
        embedded = self.target_embedding(token_ids) * self.embedding_scale
        vectors = self.target_positions.of_tokens(token_ids, positions)
        entered: Tensor = self.dropout(self.target_norm(embedded + vectors))
        return entered

    def logits(self, decoded: Tensor) -> Tensor:
        """See `CrossAttending`."""
        projected: Tensor = self.output(decoded)
        return projected


class Transformer(TransformerParts, EncoderDecoder):
    """An encoder-decoder Transformer for translation, with absolute positions.

    Args:
        source_positions: positions of the source; default: sinusoidal.
        target_positions: positions of the target; default: sinusoidal.

    Raises:
        ValueError: the width does not suit the heads or sinusoidal positions.
    """

    def __init__(
        self,
        sizes: TransformerSizes,
        *,
        source_positions: Positions | None = None,
        target_positions: Positions | None = None,
    ) -> None:
        super().__init__(sizes, DecoderLayer, source_positions=source_positions, target_positions=target_positions)
