"""Training configurations: all problems are reported at once, by key."""

import os
from pathlib import Path

import pytest

from jumok_export.training.configuration import configuration_from_values
from jumok_export.training.configuration_file import ConfigurationError, load_configuration

GOOD = """
[data]
source_language = "en"
target_language = "de"
train_source = ["a.en", "b.en"]
train_target = ["a.de", "b.de"]
validation_source = "v.en"
validation_target = "v.de"

[model]
width = 64
heads = 4

[training]
adam_betas = [0.9, 0.99]
devices = 2

[bundle]
name = "small"
"""
SIZES = "width = 64\nheads = 4\n"
RECURRENT = 'family = "recurrent"\n'
FEEDING = "[training.feeding]\n"
GUIDED = "[training.guided_alignment]\n"


def problems(tmp_path: Path, text: str) -> list[str]:
    """Reported problems, line by line."""
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(path)
    first, *others = str(caught.value).splitlines()
    assert first == f"{path} cannot be used:"
    return [line.strip() for line in others]


def test_a_valid_configuration_is_read_and_survives_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(GOOD, encoding="utf-8-sig")  # with a byte order mark, as editors of Windows write
    configuration = load_configuration(path)
    assert configuration.data.train_source == ("a.en", "b.en")
    assert configuration.model.width == 64
    assert configuration.training.adam_betas == (0.9, 0.99)
    assert configuration.training.devices == 2
    assert configuration_from_values(configuration.model_dump(mode="json")) == configuration


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("width = 64", "widht = 64", "model.widht: unknown key; did you mean width?"),
        ("devices = 2", "device = 2", "training.device: unknown key; did you mean devices?"),
        ("width = 64", "quite_other = 64", "model.quite_other: unknown key"),
        ("width = 64", 'decoder = "lstm"', "model.decoder: Input should be 'attention' or 'ssru', got 'lstm'"),
        ("heads = 4\n", f"{RECURRENT}input_feedin = true\n", "model.input_feedin: unknown key; did you mean input_fe"),
        ("[training]", "[training.feeding]\nslop = 1\n[training]", "training.feeding.slop: unknown key; did you mean"),
        ('"b.de"]\n', '"b.de"]\nsourcelanguage = 1\n', "data.sourcelanguage: unknown key; did you mean source_langua"),
        ("devices = 2", 'bleu_tokenizer = "ja-mecab"', "training: BLEU's tokenizer ja-mecab needs MeCab, which is not"),
        ("[bundle]", "[bundles]", "bundle: missing\nbundles: unknown key; did you mean bundle?"),
        ('validation_target = "v.de"', "", "data.validation_target: missing"),
        ("width = 64", 'width = "64"', "model.width: Input should be a valid integer, got '64'"),
        ("width = 64", "width = 64.0", "model.width: Input should be a valid integer, got 64.0"),
        ("width = 64", "width = true", "model.width: Input should be a valid integer, got True"),
        ("width = 64", "width = 0", "model.width: Input should be greater than or equal to 1, got 0"),
        ("width = 64", "width = 66", "model: width must be even and a multiple of heads, got width 66 and heads 4"),
        ('["a.de", "b.de"]', '["a.de"]', "data: train_source names 2 files and train_target 1"),
        ('"de"', '"German!"', "data.target_language: String should match pattern"),
        ("[0.9, 0.99]", "[0.9, 1.0]", "training.adam_betas.1: Input should be less than 1, got 1.0"),
        ("devices = 2", 'devices = "all"', "training.devices: Input should be a valid\ntraining.devices: Input should"),
        ('name = "small"', 'name = "so small"', "bundle.name: String should match pattern"),
        (
            '"small"',
            '"small"\nlimits = {max_source_length = 9, max_target_length = 9}',
            "bundle: generation.max_length 128 is over limits.max_target_length 9",
        ),
        (SIZES, f"{RECURRENT}width = 64\nencoder_width = 32\nheads = 4\n", "model.heads: unknown key"),
        (SIZES, f'{RECURRENT}attention = "none"\ninput_feeding = true\n', "model: input_feeding feeds the attentional"),
        ("width = 64", 'family = "recurent"', "model: family must be 'transformer' or 'recurrent'"),
        ("[bundle]", f'{FEEDING}mode = "scheduled_sampling"\n[bundle]', "training.feeding.mode = 'scheduled_sampling'"),
        (SIZES, f'{RECURRENT}{FEEDING}mode = "two_phases"\n', "training.feeding.free_epochs must be at least 1 and"),
        ("[model]", "[tokenizer]\nshared = false\n[model]", "model.share_embeddings = true needs tokenizer.shared ="),
        ("[bundle]", f"{GUIDED}head = 4\n[bundle]", "training.guided_alignment.head must be less than 4, the number"),
        ("[bundle]", f"{GUIDED}layer = 9\n[bundle]", "training.guided_alignment.layer must be less than 6, the number"),
        ("[bundle]", f"{GUIDED}weight = 0.0\n[bundle]", "training.guided_alignment.weight: Input should be greater th"),
        ("[bundle]", f"{GUIDED}wieght = 1\n[bundle]", "training.guided_alignment.wieght: unknown key; did you mean we"),
        (SIZES, f"{RECURRENT}{GUIDED}weight = 1.0\n", "training.guided_alignment is for models of family 'transformer"),
    ],
)
def test_problems_are_named(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new, 1))
    for line, start in zip(found, expected.splitlines(), strict=True):
        assert line.startswith(start)


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("width", "widht").replace("heads = 4", "heads = -1").replace('name = "small"', "")
    assert problems(tmp_path, text) == [
        "model.heads: Input should be greater than or equal to 1, got -1",
        "model.widht: unknown key; did you mean width?",
        "bundle.name: missing",
    ]


def test_invalid_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[data\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"config.toml is not TOML: .*line 1"):
        load_configuration(path)
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigurationError, match=r"config.toml cannot be read"):
        load_configuration(path)
    with pytest.raises(ConfigurationError, match=r"nowhere.toml cannot be read"):
        load_configuration(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("content", ["a = " + "[" * 100_000, "a = " + "9" * 10_000])
def test_nested_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError):
        load_configuration(tmp_path / "config.toml")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        load_configuration(tmp_path / "config.toml")
