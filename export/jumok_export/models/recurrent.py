"""Recurrent encoder-decoders: from a sentence in one vector to attention over all of its words."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from jumok_export.models.cells import CELLS, Cell, CellKind
from jumok_export.models.recurrent_attention import ATTENTION, AttentionKind, RecurrentAttention
from jumok_export.models.recurrent_encoder import RecurrentEncoder
from jumok_export.models.seq2seq import Seq2Seq, Tensors, length_mask

FEED = "attentional"
"""The part of the state that holds the last attentional vector, with input feeding."""


@dataclass(frozen=True, kw_only=True)
class RecurrentSizes:
    """What a recurrent model is made of.

    Attributes:
        source_vocabulary: number of source tokens.
        target_vocabulary: number of target tokens.
        cell: of encoder and decoder.
        attention: "none": the decoder knows the source by the encoder's last state alone (Sutskever et al., 2014; Cho
            et al., 2014). "dot", "general" and "concat" are those of Luong et al. (2015), "scaled_dot" is that of
            Vaswani et al. (2017) in their place: the decoder's new state asks, and the context goes into the readout.
            "bahdanau" is that of Bahdanau et al. (2015): the decoder's previous state asks, and the context goes into
            the cell as well.
        embedding: width of the embeddings.
        width: of the decoder's states.
        encoder_width: of the encoder's states, both directions together; default: `width`.
        layers: of the encoder and of the decoder.
        bidirectional: whether the encoder reads in both directions.
        reverse_source: whether sources are read from their ends (Sutskever et al., 2014, section 3.3).
        readout: how state h and context c become logits: "direct" is W [c; h], "attentional" is W tanh(W_c [c; h])
            (Luong et al., 2015, equations 5 and 6).
        tie_output: whether the output projection is the target embedding (Press and Wolf, 2017); what it is applied to
            must be as wide.
        input_feeding: whether the attentional vector goes into the next step's cell (Luong et al., 2015, section 3.3).
        dropout: on embeddings, between layers and before the readout, while training.
    """

    source_vocabulary: int
    target_vocabulary: int
    cell: CellKind = "lstm"
    attention: AttentionKind = "general"
    embedding: int = 256
    width: int = 512
    encoder_width: int | None = None
    layers: int = 1
    bidirectional: bool = True
    reverse_source: bool = False
    readout: Literal["direct", "attentional"] = "attentional"
    tie_output: bool = False
    input_feeding: bool = False
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if self.input_feeding and (self.attention in {"none", "bahdanau"} or self.readout != "attentional"):
            raise ValueError(
                "input_feeding feeds the attentional vector: it needs readout 'attentional' and an attention that does "
                f"not feed its context already, got readout {self.readout!r} and attention {self.attention!r}"
            )
        if self.tie_output and self.read_width != self.embedding:
            raise ValueError(
                "tie_output needs embeddings as wide as what logits are made of, which is "
                f"{self.read_width}, got {self.embedding}"
            )

    @property
    def read_width(self) -> int:
        """Width of what logits are made of: a state, an attentional vector, or a context and a state."""
        if self.attention == "none" or self.readout == "attentional":
            return self.width
        return self.width + (self.encoder_width or self.width)


class Recurrent(Seq2Seq):
    """A recurrent encoder-decoder. Encoder and decoder share no parameters.

    Attributes:
        scores_by_steps: a target is decoded token by token; graphs that go over one repeat the step's.

    Args:
        sizes: what it is made of.

    Raises:
        ValueError: the widths do not suit each other.
    """

    scores_by_steps = True

    def __init__(self, sizes: RecurrentSizes) -> None:
        super().__init__()
        self.sizes = sizes
        encoder_width = sizes.encoder_width or sizes.width
        self.source_embedding = nn.Embedding(sizes.source_vocabulary, sizes.embedding)
        self.target_embedding = nn.Embedding(sizes.target_vocabulary, sizes.embedding)
        self.dropout = nn.Dropout(sizes.dropout)
        self.encoder = RecurrentEncoder(
            sizes.cell,
            sizes.embedding,
            encoder_width,
            layers=sizes.layers,
            bidirectional=sizes.bidirectional,
            dropout=sizes.dropout,
        )
        names = CELLS[sizes.cell].state_names
        self.state_names = [tuple(f"{name}.{layer}" for name in names) for layer in range(sizes.layers)]
        # Only where the widths differ does anything stand between the encoder's last state and the decoder's first.
        self.bridges = nn.ModuleDict(
            {
                name.replace(".", "_"): nn.Linear(encoder_width, sizes.width)
                for of_layer in self.state_names
                for name in of_layer
                if encoder_width != sizes.width
            }
        )
        self.feeds_context = sizes.attention == "bahdanau"
        fed = encoder_width if self.feeds_context else sizes.width if sizes.input_feeding else 0
        self.decoder = nn.ModuleList(
            CELLS[sizes.cell](sizes.width if layer else sizes.embedding + fed, sizes.width)
            for layer in range(sizes.layers)
        )
        self.attention: RecurrentAttention | None = None
        self.attentional: nn.Linear | None = None
        if sizes.attention != "none":
            self.attention = ATTENTION[sizes.attention](sizes.width, encoder_width)
            if sizes.readout == "attentional":
                self.attentional = nn.Linear(encoder_width + sizes.width, sizes.width, bias=False)
        self.output = nn.Linear(sizes.read_width, sizes.target_vocabulary)
        for linear in (self.attentional, self.output, *self.bridges.values()):
            if isinstance(linear, nn.Linear):
                nn.init.xavier_uniform_(linear.weight)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=0.1)
        if sizes.tie_output:
            self.output.weight = self.target_embedding.weight

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """See `Seq2Seq`.

        The memory is the encoder's states, `encoded` [B, S, encoder_width], and where queries are compared with
        something else, `key` [B, S, D]; without attention there is none. The state is `hidden.<layer>` [B, width],
        `cell.<layer>` of an LSTM, and with input feeding the last attentional vector.
        """
        if self.sizes.reverse_source:
            source_ids = reverse(source_ids, source_lengths)
        encoded, last = self.encoder(self.dropout(self.source_embedding(source_ids)), source_lengths)
        state = {
            name: torch.tanh(self.bridges[name.replace(".", "_")](value)) if self.bridges else value
            for names, values in zip(self.state_names, last, strict=True)
            for name, value in zip(names, values, strict=True)
        }
        if self.sizes.input_feeding:
            state[FEED] = torch.zeros_like(state["hidden.0"])
        if self.attention is None:
            return {}, state
        if self.sizes.reverse_source:
            encoded = reverse(encoded, source_lengths)
        keys = self.attention.keys(encoded)
        return {"encoded": encoded} | ({} if keys is None else {"key": keys}), state

    def empty_state(self) -> Tensors:
        """See `Seq2Seq`."""
        names = [name for names in self.state_names for name in names] + [FEED] * self.sizes.input_feeding
        return {name: self.output.weight.new_zeros(1, self.sizes.width) for name in names}

    def advance(
        self, token_ids: Tensor, source_mask: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensor | None, Tensors]:
        """The decoder's cells and attention for one token of every row.

        Args:
            token_ids: [R], R = B * K; the rows of a sentence ask the same memory.
            source_mask: [B, 1, S], true within a source's length.
            memory: of `encode`.
            state: [R, ...].

        Returns:
            What `logits` are made of, [R, read]; the attention weights [B, K, S], if there is attention; the new state.
        """
        x = self.dropout(self.target_embedding(token_ids))
        asked = weights = None
        if self.attention is not None and self.feeds_context:
            asked, weights = self._attend(self.attention, state[self.state_names[-1][0]], source_mask, memory)
            x = torch.cat((x, asked), dim=-1)
        elif self.sizes.input_feeding:
            x = torch.cat((x, state[FEED]), dim=-1)
        new: Tensors = {}
        for number, (names, cell) in enumerate(zip(self.state_names, self.decoder, strict=True)):
            values = cast(Cell, cell)(self.dropout(x) if number else x, [state[name] for name in names])
            new.update(zip(names, values, strict=True))
            x = values[0]
        if self.attention is not None and asked is None:
            asked, weights = self._attend(self.attention, x, source_mask, memory)
        read = x if asked is None else torch.cat((asked, x), dim=-1)
        if self.attentional is not None:
            read = torch.tanh(self.attentional(read))
        if self.sizes.input_feeding:
            new[FEED] = read
        return read, weights, new

    @staticmethod
    def _attend(
        attention: RecurrentAttention, query: Tensor, source_mask: Tensor, memory: Tensors
    ) -> tuple[Tensor, Tensor]:
        """Contexts [R, encoder_width] for queries [R, width], and the weights [B, K, S]."""
        encoded = memory["encoded"]
        queries = query.reshape(encoded.shape[0], -1, query.shape[-1])  # the beams of a sentence side by side
        contexts, weights = attention(queries, memory.get("key", encoded), encoded, source_mask)
        return contexts.reshape(query.shape[0], encoded.shape[-1]), weights

    def logits(self, read: Tensor) -> Tensor:
        """Logits [..., V] of what `advance` gives."""
        projected: Tensor = self.output(self.dropout(read))
        return projected

    def forward(
        self,
        source_ids: Tensor,
        source_lengths: Tensor,
        start_ids: Tensor,
        target_ids: Tensor,
        *,
        forced_share: float = 1.0,
    ) -> Tensor:
        """See `Seq2Seq`: token by token.

        With a `forced_share` below 1, the decoder is fed the target's token with this probability, and else the one
        that it found most likely itself: "Scheduled Sampling" (Bengio et al., 2015), and with 0 free running.
        """
        read, _ = self.follow(source_ids, source_lengths, start_ids, target_ids, forced_share=forced_share)
        return self.logits(read)

    def follow(
        self,
        source_ids: Tensor,
        source_lengths: Tensor,
        start_ids: Tensor,
        target_ids: Tensor,
        *,
        forced_share: float = 1.0,
    ) -> tuple[Tensor, Tensor | None]:
        """Decodes given targets; the arguments are those of `forward`.

        Returns:
            What `logits` are made of, [B, T, read], and the attention weights [B, T, S], if there is attention.
        """
        memory, state = self.encode(source_ids, source_lengths)
        mask = length_mask(source_lengths, source_ids.shape[1])[:, None]
        reads: list[Tensor] = []
        attended = []
        for token_ids in self.shift(start_ids, target_ids).unbind(dim=1):
            fed = token_ids
            if forced_share < 1.0 and reads:
                with torch.no_grad():
                    chosen = self.output(reads[-1]).argmax(dim=-1)
                forced = torch.rand(token_ids.shape, device=token_ids.device) < forced_share
                fed = torch.where(forced, token_ids, chosen)
            read, weights, state = self.advance(fed, mask, memory, state)
            reads.append(read)
            attended += [] if weights is None else [weights]
        return torch.stack(reads, dim=1), torch.cat(attended, dim=1) if attended else None

    def step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """See `Seq2Seq`: a row's state is what its parent ended with, or in its first step what `encode` gave."""
        logits, new, _ = self._step(token_ids, parents, source_lengths, memory, state)
        return logits, new

    def _step(
        self, token_ids: Tensor, parents: Tensor, source_lengths: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensors, Tensor | None]:
        source = memory["encoded"].shape[1] if memory else 1
        mask = length_mask(source_lengths, source)[:, None]
        continued = {name: value[parents] for name, value in state.items()}
        read, weights, new = self.advance(token_ids, mask, memory, continued)
        return self.logits(read), new, weights


class AttentiveRecurrent(Recurrent):
    """A recurrent encoder-decoder with attention, which can tell what it attended to."""

    def attending_step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors, Tensor]:
        """`step`, and what its rows attended to: [R, 1, 1, S], of one layer and one head."""
        logits, new, weights = self._step(token_ids, parents, source_lengths, memory, state)
        assert weights is not None
        return logits, new, weights.reshape(token_ids.shape[0], 1, 1, weights.shape[-1])

    def align(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor]:
        """What attended to what when `target_ids` were decoded; the arguments are those of `score`.

        Returns:
            Cross-attention [B, 1, 1, T, S], of one layer and head; 0 for target positions behind the end. There is no
            self-attention.
        """
        _, weights = self.follow(source_ids, source_lengths, start_ids, target_ids)
        assert weights is not None
        target_mask = length_mask(target_lengths, target_ids.shape[1])
        return ((weights * target_mask[..., None])[:, None, None],)


def make_recurrent(sizes: RecurrentSizes) -> Recurrent:
    """The model of some sizes.

    Raises:
        ValueError: the widths do not suit each other.
    """
    return Recurrent(sizes) if sizes.attention == "none" else AttentiveRecurrent(sizes)


def reverse(sequence: Tensor, lengths: Tensor) -> Tensor:
    """Each sequence back to front within its own length; padding stays where it is.

    Args:
        sequence: [B, S, ...].
        lengths: [B].
    """
    places = torch.arange(sequence.shape[1], device=sequence.device)  # [S]
    mirrored = lengths[:, None] - 1 - places  # [B, S]
    index = torch.where(mirrored >= 0, mirrored, places)
    return sequence[torch.arange(index.shape[0], device=sequence.device)[:, None], index]
