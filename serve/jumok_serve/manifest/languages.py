"""Languages of a model, and the spelling of their codes."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from pydantic import model_validator

from jumok_proto.errors import InvalidArgumentError, LanguageNotFoundError
from jumok_serve.manifest.parts import LanguageTag, Part, TokenId

_PAIRS = (
    "aar-aa abk-ab adp-dz afr-af aka-ak alb-sq als-sq amh-am ara-ar arb-ar arg-an arm-hy asm-as ava-av ave-ae aym-ay "
    "ayr-ay aze-az azj-az bak-ba bam-bm baq-eu bel-be ben-bn bis-bi bod-bo bos-bs bre-br bul-bg bur-my cat-ca ces-cs "
    "cha-ch che-ce chi-zh chu-cu chv-cv cls-sa cmn-zh cor-kw cos-co cre-cr cwd-cr cym-cy cze-cs dan-da deu-de div-dv "
    "drh-mn dut-nl dzo-dz ekk-et ell-el eng-en epo-eo esk-ik est-et eus-eu ewe-ee fao-fo fas-fa fat-ak fij-fj fin-fi "
    "fra-fr fre-fr fry-fy fuc-ff ful-ff gaz-om geo-ka ger-de gla-gd gle-ga glg-gl glv-gv gre-el grn-gn gug-gn guj-gu "
    "hat-ht hau-ha heb-he her-hz hin-hi hmo-ho hrv-hr hun-hu hye-hy ibo-ig ice-is ido-io iii-ii ike-iu iku-iu ile-ie "
    "ina-ia ind-id ipk-ik isl-is ita-it jav-jv jpn-ja kal-kl kan-kn kas-ks kat-ka kau-kr kaz-kk khk-mn khm-km kik-ki "
    "kin-rw kir-ky kmr-ku knc-kr kng-kg kom-kv kon-kg kor-ko kpv-kv kua-kj kur-ku lao-lo lat-la lav-lv lim-li lin-ln "
    "lit-lt ltz-lb lub-lu lug-lg lvs-lv mac-mk mah-mh mal-ml mao-mi mar-mr may-ms mkd-mk mlg-mg mlt-mt mol-ro mon-mn "
    "mri-mi msa-ms mya-my nau-na nav-nv nbl-nr nde-nd ndo-ng nep-ne nld-nl nno-nn nob-nb nor-no npi-ne nya-ny oci-oc "
    "ojg-oj oji-oj ori-or orm-om ory-or oss-os pan-pa pbu-ps per-fa pes-fa pli-pi plt-mg pol-pl por-pt prp-gu pus-ps "
    "que-qu quz-qu roh-rm ron-ro rum-ro run-rn rus-ru sag-sg san-sa scc-sr scr-hr sin-si slk-sk slo-sk slv-sl sme-se "
    "smo-sm sna-sn snd-sd som-so sot-st spa-es sqi-sq src-sc srd-sc srp-sr ssw-ss sun-su swa-sw swe-sv swh-sw tah-ty "
    "tam-ta tat-tt tel-te tgk-tg tha-th tib-bo tir-ti ton-to tsn-tn tso-ts tuk-tk tur-tr twi-ak uig-ug ukr-uk urd-ur "
    "uzb-uz uzn-uz ven-ve vie-vi vol-vo wel-cy wln-wa wol-wo xho-xh ydd-yi yid-yi yor-yo zha-za zho-zh zsm-ms zul-zu "
    "zyb-za "
)
_TWO_LETTERS = dict(pair.split("-") for pair in _PAIRS.split())
WITHOUT_SPACES = frozenset({"zh", "yue", "wuu", "ja", "th", "lo", "km", "my", "bo", "dz"})
"""Languages that write no space between words or sentences."""


AUTO = "auto"
"""Source language of texts whose language shall be detected."""


def is_auto(language: str | None) -> bool:
    """True if the language of texts shall be detected."""
    return language is not None and language.casefold() == AUTO


def tag_key(tag: str) -> str:
    """Return a tag in one spelling: without case, and with hyphens."""
    return tag.replace("_", "-").casefold()


def primary_language(tag: str) -> str:
    """Return the language of a tag, in two letters if it has such a code: ``de`` for ``deu_Latn`` and ``de-AT``."""
    language = re.split("[-_]", tag, maxsplit=1)[0].lower()
    return _TWO_LETTERS.get(language, language)


def writes_spaces(tag: str) -> bool:
    """True if a language writes spaces between words and sentences."""
    return primary_language(tag) not in WITHOUT_SPACES


MAX_LISTED = 24
"""Most languages or pairs in an error message."""


class SourceLanguage(Part):
    """Token ids around a text, such as a language token and EOS."""

    prefix: tuple[TokenId, ...] = ()
    suffix: tuple[TokenId, ...] = ()


class TargetLanguage(Part):
    """Token ids that a translation into this language needs.

    Attributes:
        source_prefix: ids at the beginning of the source (``>>deu<<``), before the source language's prefix.
        start: start token of the decoder; None: the model's.
        forced_first: token that the decoder must write first; None: none.
    """

    source_prefix: tuple[TokenId, ...] = ()
    start: TokenId | None = None
    forced_first: TokenId | None = None


class LanguagePair(Part):
    """A direction of translation; ``task_prefix`` is text that the model needs before every source."""

    source: LanguageTag
    target: LanguageTag
    task_prefix: str = ""


class Languages(Part):
    """Languages of a model.

    Attributes:
        pairs: directions of the model; empty: every source with every target.
        default: direction of requests without languages.
    """

    sources: dict[LanguageTag, SourceLanguage]
    targets: dict[LanguageTag, TargetLanguage]
    pairs: tuple[LanguagePair, ...] = ()
    default: LanguagePair | None = None

    @classmethod
    def of_pair(cls, source: str, target: str, *, prefix: tuple[int, ...] = (), suffix: tuple[int, ...]) -> Self:
        """Return the languages of a model with one direction.

        The tokens ``prefix`` begin every source, and ``suffix``, usually EOS, ends it.
        """
        return cls(
            sources={source: SourceLanguage(prefix=prefix, suffix=suffix)},
            targets={target: TargetLanguage()},
            default=LanguagePair(source=source, target=target),
        )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for known, role in ((self.sources, "source"), (self.targets, "target")):
            if not known:
                raise ValueError(f"name at least one {role} language")
            if len({tag_key(tag) for tag in known}) < len(known):
                raise ValueError(f"two {role} languages differ only in case or hyphens: {', '.join(known)}")
        for pair in (*self.pairs, *([self.default] if self.default else [])):
            for tag, known, role in ((pair.source, self.sources, "source"), (pair.target, self.targets, "target")):
                if tag not in known:
                    raise ValueError(f"pair {pair.source} to {pair.target}: {tag} is not a {role} language")
        return self

    @property
    def all_pairs(self) -> Iterator[tuple[str, str]]:
        """All directions, as (source, target)."""
        if self.pairs:
            return ((pair.source, pair.target) for pair in self.pairs)
        return ((source, target) for source in self.sources for target in self.targets)

    def direction(self, source: str | None = None, target: str | None = None) -> "Direction":
        """Return the direction between two languages, in any case and with ``-`` or ``_``.

        A language that is None becomes that of the default, or the only language.

        Raises:
            LanguageNotFoundError: the model does not have a language, or not this pair.
            InvalidArgumentError: a language is None and the model has no default.
        """
        default = self.default
        source_tag = _find("source", source, self.sources, default.source if default else None)
        target_tag = _find("target", target, self.targets, default.target if default else None)
        task_prefix = ""
        if default is not None and (default.source, default.target) == (source_tag, target_tag):
            task_prefix = default.task_prefix
        elif self.pairs:
            pairs = {(pair.source, pair.target): pair for pair in self.pairs}
            if (source_tag, target_tag) not in pairs:
                raise LanguageNotFoundError(
                    f"the model does not translate from {source_tag} to {target_tag}; its pairs are "
                    f"{_join(f'{pair.source} to {pair.target}' for pair in self.pairs)}",
                    field="target_language_code",
                )
            task_prefix = pairs[source_tag, target_tag].task_prefix
        reads, writes = self.sources[source_tag], self.targets[target_tag]
        return Direction(
            source=source_tag,
            target=target_tag,
            source_prefix=(*writes.source_prefix, *reads.prefix),
            source_suffix=reads.suffix,
            task_prefix=task_prefix,
            start=writes.start,
            forced_first=writes.forced_first,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A direction of translation, with the token ids that it needs.

    Attributes:
        source_prefix: ids before those of the text.
        source_suffix: ids after those of the text.
        task_prefix: text before the text.
        start: start token of the decoder; None: the model's.
        forced_first: token that the decoder must write first; None: none.
    """

    source: str
    target: str
    source_prefix: tuple[int, ...]
    source_suffix: tuple[int, ...]
    task_prefix: str
    start: int | None
    forced_first: int | None


def _find(role: str, tag: str | None, known: Iterable[str], default: str | None) -> str:
    tags = {tag_key(known_tag): known_tag for known_tag in known}
    if tag is None:
        if default is not None:
            return default
        if len(tags) == 1:
            return next(iter(tags.values()))
        raise InvalidArgumentError(
            f"the model has several {role} languages and no default: name one of {_join(tags.values())}",
            field=f"{role}_language_code",
        )
    if tag_key(tag) not in tags:
        raise LanguageNotFoundError(
            f"the model has no {role} language {tag!r}; it has {_join(tags.values())}",
            field=f"{role}_language_code",
        )
    return tags[tag_key(tag)]


def _join(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return ", ".join(listed[:MAX_LISTED]) + more
