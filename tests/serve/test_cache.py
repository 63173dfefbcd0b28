"""The cache folder, and the models in it by their names on the hub."""

import os
from pathlib import Path

import pytest

from jumok_serve.cache import (
    CACHE_VARIABLE,
    HubName,
    bundle_size,
    cache_folder,
    cached_models,
    parse_hub_name,
    remove,
)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache/jumok"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/jumok"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_without_a_home_there_is_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user of a container without a home
    with pytest.raises(RuntimeError, match="home"):
        cache_folder()


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-en-de", None),
        ("hf:Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-en-de", None),
        ("org/name@v1.0", "org/name", "v1.0"),
        ("hf:org/name@refs/pr/1", "org/name", "refs/pr/1"),
        ("org/name@main", "org/name", None),
    ],
)
def test_names_of_the_hub(text: str, name: str, revision: str | None) -> None:
    assert parse_hub_name(text) == HubName(name, revision)


@pytest.mark.parametrize(
    "text",
    ["name", "a/b/c", "/a/b", "./a", "../a", "a/..", "a/-b", "a--b/c", "a/b@", "a/b@../x", "a/b@x//y", "a b/c", "hf:"],
)
def test_other_texts_are_no_names(text: str) -> None:
    assert parse_hub_name(text) is None


def test_a_path_into_an_existing_folder_is_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    assert parse_hub_name("models/missing") is None
    assert parse_hub_name("hf:models/missing") == HubName("models/missing")


def test_cached_models_are_listed_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert list(cached_models()) == []
    names = [HubName("org/a"), HubName("org/a", "refs/pr/1"), HubName("org/b"), HubName("other/a")]
    for name in names:
        assert not name.is_cached()
        name.bundle.mkdir(parents=True)
        (name.bundle / "manifest.json").write_bytes(b"{}")
    (tmp_path / "bundles/org/unfinished").mkdir()
    (tmp_path / "bundles/org/.temporary").mkdir()
    (tmp_path / "bundles/org/.temporary/manifest.json").touch()
    assert sorted(cached_models(), key=str) == sorted(names, key=str)
    assert bundle_size(names[0]) == 2
    remove(names[0])
    remove(names[3])
    assert sorted(cached_models(), key=str) == sorted(names[1:3], key=str)
    assert not (tmp_path / "bundles/other").exists()
    assert names[1].is_cached()
