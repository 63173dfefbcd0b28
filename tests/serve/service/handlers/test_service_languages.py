"""SDK, gRPC and a real model of several languages, end to end."""

from pathlib import Path
from typing import Any

import pytest

import jumok
from jumok_serve.translator import Translator
from tests.serve.service.handlers.test_service_translator import check_same
from tests.support.models.variants import edited, multilingual
from tests.support.servers.in_process_server import serving


def test_a_model_of_several_languages_describes_them(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = edited(tiny_bundle, tmp_path / "multilingual", multilingual)
    with Translator(bundle, threads=1) as translator, serving(translator) as address, jumok.Client(address) as client:
        (model,) = client.list_models()
        assert (model.source_languages, model.target_languages) == (("en", "fr-FR"), ("de", "nl", "pt-BR"))
        assert [(pair.source, pair.target) for pair in model.language_pairs] == [
            ("en", "de"),
            ("en", "nl"),
            ("fr-FR", "nl"),
            ("fr-FR", "pt-BR"),
        ]
        assert model.default_pair == jumok.LanguagePair(source="en", target="de")
        answer = client.translate("a man", source_language="fr_fr", target_language="NL", max_length=3)
        assert (answer.source_language, answer.target_language) == ("fr-FR", "nl")
        check_same(
            [answer], [translator.translate("a man", source_language="fr-FR", target_language="nl", max_length=3)]
        )


def test_where_no_language_is_the_default_one_must_be_named(tiny_bundle: Path, tmp_path: Path) -> None:
    def undecided(manifest: dict[str, Any]) -> None:
        multilingual(manifest)
        manifest["languages"]["default"] = None
        manifest["languages"]["pairs"] = []

    bundle = edited(tiny_bundle, tmp_path / "undecided", undecided)
    with Translator(bundle, threads=1) as translator, serving(translator) as address, jumok.Client(address) as client:
        (model,) = client.list_models()
        assert (model.default_pair, model.language_pairs) == (None, ())
        with pytest.raises(jumok.InvalidArgumentError, match="several source languages and no default") as caught:
            client.translate("a", target_language="de")
        assert caught.value.field == "source_language_code"
