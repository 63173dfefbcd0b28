"""Two-letter language codes of three-letter ones, as CLDR has them, and languages without spaces."""

import re

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
