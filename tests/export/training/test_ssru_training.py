"""Training of a Transformer with the SSRU decoder."""

from pathlib import Path

import pytest

from jumok_export.models.ssru import SSRUTransformer
from jumok_export.training.callbacks import read_metrics
from jumok_export.training.checkpoint import build_model, load_checkpoint
from jumok_export.training.configuration_file import ConfigurationError, parse_configuration
from jumok_export.training.train import train
from tests.export.training.test_training import CONFIGURATION, DATA


def test_a_model_with_ssru_trains_and_loads(tmp_path: Path) -> None:
    text = CONFIGURATION.replace("decoder_layers = 1", 'decoder_layers = 2\ndecoder = "ssru"')
    (tmp_path / "config.toml").write_text(text)
    train(tmp_path / "config.toml", tmp_path / "run", data=DATA)
    checkpoint = load_checkpoint(tmp_path / "run")
    assert isinstance(checkpoint.model, SSRUTransformer)
    assert set(checkpoint.model.empty_state()) == {"cell.0", "cell.1"}
    losses = [float(row["train_loss"]) for row in read_metrics(tmp_path / "run")]
    assert losses[-1] < losses[0]


def test_the_decoder_is_one_of_two() -> None:
    model = parse_configuration(CONFIGURATION, "config.toml")
    assert not isinstance(build_model(model, 9, 9), SSRUTransformer)
    with pytest.raises(ConfigurationError, match=r"model\.decoder: Input should be 'attention' or 'ssru', got 'lstm'"):
        parse_configuration(CONFIGURATION.replace("width = 16", 'width = 16\ndecoder = "lstm"'), "config.toml")
