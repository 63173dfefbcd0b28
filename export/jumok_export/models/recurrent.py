"""Recurrent encoder-decoders, with attention or without."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from jumok_export.models.cells import CELLS, Cell, CellKind, run_cell
from jumok_export.models.recurrent_attention import ATTENTION, AttentionKind, RecurrentAttention
from jumok_export.models.recurrent_encoder import RecurrentEncoder
from jumok_export.models.seq2seq import Seq2Seq, Tensors, length_mask, reverse

FEED = "attentional"
"""Name of the last attentional vector in the state, with input feeding."""

AT_ONCE: frozenset[AttentionKind] = frozenset({"none", "dot", "scaled_dot", "general"})
"""Attention of whole targets at once; "concat" would need [B, T, S, D] elements, and "bahdanau" feeds the cell."""


@dataclass(frozen=True, kw_only=True)
class RecurrentSizes:
    """Sizes and options of a recurrent model.

    Attributes:
        cell: kind of cell of encoder and decoder.
        attention: kind of attention. With "none" the decoder reads only the encoder's last state (Sutskever et al.,
            2014; Cho et al., 2014). "dot", "general", "concat" (Luong et al., 2015) and "scaled_dot" (Vaswani et al.,
            2017) query with the decoder's new state; the context goes into the readout. "bahdanau" (Bahdanau et al.,
            2015) queries with the previous state; the context also goes into the cell.
        embedding: width of the embeddings.
        width: width of the decoder's states.
        encoder_width: width of the encoder's states, both directions together; default: `width`.
        first_state: the decoder's first state. "last" is the encoder's last one (through a tanh layer if the widths
            differ), "mean" a tanh layer over the mean of its states (Sennrich et al., 2017), "zero" neither.
        layers: number of layers of encoder and decoder each.
        bidirectional: True for an encoder in both directions.
        reverse_source: True to read sources from their ends (Sutskever et al., 2014, section 3.3).
        readout: computation of logits from state h and context c: "direct" is W [c; h], "attentional" is
            W tanh(W_c [c; h]) (Luong et al., 2015, equations 5 and 6).
        tie_output: True to use the target embedding as output projection (Press and Wolf, 2017), which needs
            `read_width` equal to `embedding`.
        input_feeding: True to feed the attentional vector to the next step's cell (Luong et al., 2015, section 3.3).
        dropout: dropout on embeddings, between layers and before the readout, while training.
    """

    source_vocabulary: int
    target_vocabulary: int
    cell: CellKind = "lstm"
    attention: AttentionKind = "general"
    embedding: int = 256
    width: int = 512
    encoder_width: int | None = None
    first_state: Literal["last", "mean", "zero"] = "last"
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
        if self.first_state == "zero" and self.attention == "none":
            raise ValueError("first_state 'zero' needs attention: without it the decoder reads only its first state")
        if self.tie_output and self.read_width != self.embedding:
            raise ValueError(
                "tie_output needs embeddings as wide as what logits are made of, which is "
                f"{self.read_width}, got {self.embedding}"
            )

    @property
    def read_width(self) -> int:
        """Width of the output projection's input.

        The input is a state, an attentional vector, or a context and a state.
        """
        if self.attention == "none" or self.readout == "attentional":
            return self.width
        return self.width + (self.encoder_width or self.width)


class Recurrent(Seq2Seq):
    """A recurrent encoder-decoder; encoder and decoder share no parameters.

    Attributes:
        scores_by_steps: True: graphs over whole targets repeat the step's graph.

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
        # Projections to the decoder's first state: of the encoder's last one if the widths differ, or of the mean.
        bridged = [name.replace(".", "_") for of_layer in self.state_names for name in of_layer]
        if sizes.first_state != "last" or encoder_width == sizes.width:
            bridged = ["mean"] if sizes.first_state == "mean" else []
        self.bridges = nn.ModuleDict({name: nn.Linear(encoder_width, sizes.width) for name in bridged})
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

        The memory is the encoder's states, `encoded` [B, S, encoder_width], and their projection, `key` [B, S, D], if
        the kind of attention has one; without attention it is empty. The state is `hidden.<layer>` [B, width],
        `cell.<layer>` of an LSTM, and with input feeding the last attentional vector.
        """
        if self.sizes.reverse_source:
            source_ids = reverse(source_ids, source_lengths)
        encoded, last = self.encoder(self.dropout(self.source_embedding(source_ids)), source_lengths)
        state = self._first_state(encoded, last, source_lengths)
        if self.sizes.input_feeding:
            state[FEED] = torch.zeros_like(state["hidden.0"])
        if self.attention is None:
            return {}, state
        if self.sizes.reverse_source:
            encoded = reverse(encoded, source_lengths)
        keys = self.attention.keys(encoded)
        return {"encoded": encoded} | ({} if keys is None else {"key": keys}), state

    def _first_state(self, encoded: Tensor, last: list[tuple[Tensor, ...]], source_lengths: Tensor) -> Tensors:
        if self.sizes.first_state == "last":
            return {
                name: torch.tanh(self.bridges[name.replace(".", "_")](value)) if self.bridges else value
                for names, values in zip(self.state_names, last, strict=True)
                for name, value in zip(names, values, strict=True)
            }
        if self.sizes.first_state == "mean":  # states of padding are 0
            first = torch.tanh(self.bridges["mean"](encoded.sum(dim=1) / source_lengths[:, None]))
        else:
            first = encoded.new_zeros(encoded.shape[0], self.sizes.width)
        return {name: first.clone() for names in self.state_names for name in names}

    def empty_state(self) -> Tensors:
        """See `Seq2Seq`."""
        names = [name for names in self.state_names for name in names] + [FEED] * self.sizes.input_feeding
        return {name: self.output.weight.new_zeros(1, self.sizes.width) for name in names}

    def advance(
        self, token_ids: Tensor, source_mask: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensor | None, Tensors]:
        """Run the decoder's cells and attention for one token of every row.

        Args:
            token_ids: [R], R = B * K.
            source_mask: true within a source's length, [B, 1, S].
            memory: memory of `encode`.
            state: [R, ...].

        Returns:
            The input of `logits` [R, read_width], the attention weights [B, K, S] or None, and the new state.
        """
        x = self.dropout(self.target_embedding(token_ids))
        found = weights = None
        if self.attention is not None and self.feeds_context:
            found, weights = self._attend(self.attention, state[self.state_names[-1][0]], source_mask, memory)
            x = torch.cat((x, found), dim=-1)
        elif self.sizes.input_feeding:
            x = torch.cat((x, state[FEED]), dim=-1)
        new: Tensors = {}
        for number, (names, cell) in enumerate(zip(self.state_names, self.decoder, strict=True)):
            values = cast(Cell, cell)(self.dropout(x) if number else x, [state[name] for name in names])
            new.update(zip(names, values, strict=True))
            x = values[0]
        if self.attention is not None and found is None:
            found, weights = self._attend(self.attention, x, source_mask, memory)
        read = self._read(x, found)
        if self.sizes.input_feeding:
            new[FEED] = read
        return read, weights, new

    def _read(self, x: Tensor, found: Tensor | None) -> Tensor:
        """The input of `logits` [..., read_width], from states and contexts."""
        read = x if found is None else torch.cat((found, x), dim=-1)
        return read if self.attentional is None else torch.tanh(self.attentional(read))

    @staticmethod
    def _attend(
        attention: RecurrentAttention, query: Tensor, source_mask: Tensor, memory: Tensors
    ) -> tuple[Tensor, Tensor]:
        """Attend with queries [R, width] or [B, K, width].

        Returns:
            Contexts [R, encoder_width] or [B, K, encoder_width], and weights [B, K, S].
        """
        encoded = memory["encoded"]
        queries = query.reshape(encoded.shape[0], -1, query.shape[-1])  # the beams of a sentence side by side
        contexts, weights = attention(queries, memory.get("key", encoded), encoded, source_mask)
        return contexts.reshape(*query.shape[:-1], encoded.shape[-1]), weights

    def logits(self, read: Tensor) -> Tensor:
        """Compute logits [..., V] from the output of `advance`."""
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
        """See `Seq2Seq`; computed by `follow`.

        Args:
            forced_share: probability of feeding the target's token instead of the decoder's most likely one:
                "Scheduled Sampling" (Bengio et al., 2015); 0 is free running.
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
        """Decode given targets, all tokens at once where no step needs what another one found.

        The arguments are those of `forward`.

        Returns:
            The input of `logits` [B, T, read_width], and the attention weights [B, T, S] or None.
        """
        memory, state = self.encode(source_ids, source_lengths)
        mask = length_mask(source_lengths, source_ids.shape[1])[:, None]
        if forced_share == 1.0 and self.sizes.attention in AT_ONCE and not self.sizes.input_feeding:
            return self._follow_at_once(self.shift(start_ids, target_ids), mask, memory, state)
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

    def _follow_at_once(
        self, token_ids: Tensor, source_mask: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensor | None]:
        """Decode inputs [B, T]; see `follow`."""
        x = self.dropout(self.target_embedding(token_ids))
        for number, (names, cell) in enumerate(zip(self.state_names, self.decoder, strict=True)):
            first = [state[name] for name in names]
            x, _ = run_cell(cast(Cell, cell), self.dropout(x) if number else x, None, state=first)
        if self.attention is None:
            return self._read(x, None), None
        found, weights = self._attend(self.attention, x, source_mask, memory)
        return self._read(x, found), weights

    def step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """See `Seq2Seq`; a row's first state is that of `encode`."""
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
    """A recurrent encoder-decoder with attention, which returns its weights."""

    def attending_step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors, Tensor]:
        """Do a `step`, and return its attention weights, [R, 1, 1, S]."""
        logits, new, weights = self._step(token_ids, parents, source_lengths, memory, state)
        assert weights is not None
        return logits, new, weights.reshape(token_ids.shape[0], 1, 1, weights.shape[-1])

    def align(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> tuple[Tensor]:
        """Compute the attention weights of given targets; the arguments are those of `score`.

        Returns:
            Cross-attention of one layer and head, [B, 1, 1, T, S]; 0 after a target's end.
        """
        _, weights = self.follow(source_ids, source_lengths, start_ids, target_ids)
        assert weights is not None
        target_mask = length_mask(target_lengths, target_ids.shape[1])
        return ((weights * target_mask[..., None])[:, None, None],)


def make_recurrent(sizes: RecurrentSizes) -> Recurrent:
    """Make the model of some sizes, with `align` if it has attention.

    Raises:
        ValueError: the widths do not suit each other.
    """
    return Recurrent(sizes) if sizes.attention == "none" else AttentiveRecurrent(sizes)
