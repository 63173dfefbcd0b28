"""Lightning module of a translation model: loss, learning rate, validation by BLEU or chrF."""

import math
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor
from torch.nn import functional as F

from jumok_export.models.encoder_decoder import CrossAttending
from jumok_export.training.checkpoint import build_model, checkpoint_entry
from jumok_export.training.configuration import Configuration, TrainingSection
from jumok_export.training.corpus import Batch, BatchLinks
from jumok_export.training.greedy import greedy_decode
from jumok_export.training.vocabulary import PAD, START, Vocabulary

LEAST_WEIGHT = 1e-30
"""Attention weights below are taken for it, as their logarithm may be infinite."""


def learning_rate_factor(step: int, training: TrainingSection, total_steps: int) -> float:
    """Factor of the highest learning rate at an update: linear warm-up, then the schedule.

    "inverse_sqrt" is equation 3 of "Attention Is All You Need", scaled to a peak of 1. "cosine" falls to 0 at
    `total_steps`.
    """
    warmup = max(1, training.warmup_steps)
    if step < warmup:
        return (step + 1) / warmup
    if training.schedule == "inverse_sqrt":
        return math.sqrt(warmup / (step + 1))
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return 0.5 * (1 + math.cos(math.pi * progress))


def _cross_entropy(logits: Tensor, batch: Batch, smoothing: float) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), batch.target_ids.flatten(), ignore_index=PAD, label_smoothing=smoothing
    )


def alignment_loss(attention: Tensor, links: BatchLinks | None) -> Tensor:
    """Compute the mean cross-entropy of a head with the links of target tokens, in nats; 0 without links.

    Args:
        attention: weights of one head, [B, T, S].
    """
    if links is None or not len(links.weights):
        return attention.new_zeros((), dtype=torch.float32)
    linked = attention[links.sentences, links.targets, links.sources].float().clamp_min(LEAST_WEIGHT)
    return -(links.weights * linked.log()).sum() / links.weights.sum()


class TranslationTraining(pl.LightningModule):
    """Training by cross-entropy with label smoothing, and validation by greedy BLEU, or chrF without a tokenizer.

    Args:
        target_vocabulary: vocabulary of the target language; the same object if the languages share one.
        files: SHA-256 of the training files by name, noted in checkpoints.
    """

    def __init__(
        self,
        configuration: Configuration,
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        files: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.configuration = configuration
        self.vocabularies = source_vocabulary, target_vocabulary
        self.files = files
        self.model = build_model(configuration, len(source_vocabulary), len(target_vocabulary))
        tokenizer = configuration.bleu_tokenizer
        self.metric = CHRF() if tokenizer is None else BLEU(tokenize=tokenizer)
        self.decoded: list[str] = []
        self.references: list[str] = []

    def loss(self, batch: Batch, smoothing: float, forced_share: float = 1.0) -> Tensor:
        """Compute the mean cross-entropy of target tokens, in nats; `forced_share` is that of `Recurrent`."""
        start_ids = torch.full_like(batch.source_lengths, START)
        sampling = {} if forced_share == 1.0 else {"forced_share": forced_share}
        logits = self.model(batch.source_ids, batch.source_lengths, start_ids, batch.target_ids, **sampling)
        return _cross_entropy(logits, batch, smoothing)

    def guided_losses(self, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
        """Compute the mean cross-entropy of target tokens, and that of the guided head with their links, in nats."""
        assert isinstance(self.model, CrossAttending)
        assert self.configuration.guided_head is not None
        layer, head = self.configuration.guided_head
        start_ids = torch.full_like(batch.source_lengths, START)
        logits, attention = self.model.attending(batch.source_ids, batch.source_lengths, start_ids, batch.target_ids)
        return _cross_entropy(logits, batch, smoothing), alignment_loss(attention[layer][:, head], batch.links)

    def on_train_epoch_start(self) -> None:
        """Seed dropout by the epoch, so that a resumed run equals an uninterrupted one."""
        seeds = np.random.SeedSequence([self.configuration.training.seed, self.current_epoch, self.global_rank])
        torch.manual_seed(int(seeds.generate_state(1)[0]))

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """Compute the loss of one batch."""
        training = self.configuration.training
        tokens = int((batch.target_ids != PAD).sum())

        def log(name: str, value: Tensor) -> None:
            self.log(name, value, prog_bar=True, on_step=False, on_epoch=True, batch_size=tokens, sync_dist=True)

        if training.guided_alignment is None:
            share = training.feeding.forced_share(self.global_step, self.current_epoch, training.max_epochs)
            loss = self.loss(batch, training.label_smoothing, share)
            log("train_loss", loss)
            return loss
        loss, guided = self.guided_losses(batch, training.label_smoothing)
        log("train_loss", loss)
        log("alignment_loss", guided)
        return loss + training.guided_alignment.weight * guided

    def validation_step(self, batch: Batch, _: int) -> None:
        """Compute the loss without smoothing, and greedy translations for the epoch's score."""
        loss = self.loss(batch, smoothing=0.0)
        tokens = int((batch.target_ids != PAD).sum())
        self.log("validation_loss", loss, prog_bar=True, batch_size=tokens, sync_dist=True)
        longest = min(self.configuration.bundle.limits.max_target_length, 2 * batch.source_ids.shape[1] + 10)
        for row in greedy_decode(self.model, batch.source_ids, batch.source_lengths, longest):
            self.decoded.append(self.vocabularies[1].decode(row))
        self.references += batch.references

    def on_validation_epoch_end(self) -> None:
        """Score the greedy translations of all devices."""
        texts, references = self._of_all_devices(self.decoded), self._of_all_devices(self.references)
        score = self.metric.corpus_score(texts, [references]).score
        self.log(self.configuration.validation_score, score, prog_bar=True)
        self.decoded, self.references = [], []

    def _of_all_devices(self, lines: list[str]) -> list[str]:
        if self.trainer.world_size == 1:
            return lines
        parts: list[list[str]] = [[]] * self.trainer.world_size
        torch.distributed.all_gather_object(parts, lines)
        return [line for part in parts for line in part]

    def configure_optimizers(self) -> Any:
        """AdamW with the configured schedule, stepped every update."""
        training = self.configuration.training
        optimizer = torch.optim.AdamW(
            self.parameters(), training.learning_rate, betas=training.adam_betas, weight_decay=training.weight_decay
        )
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, training, total)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add configuration and vocabularies, so that a checkpoint can be exported on its own."""
        checkpoint["jumok"] = checkpoint_entry(self.configuration, *self.vocabularies, self.files)
