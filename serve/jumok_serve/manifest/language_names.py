"""English names of languages."""

# ISO 639-1, and some codes of three letters.
_NAMES = """
af Afrikaans|am Amharic|ar Arabic|as Assamese|ast Asturian|az Azerbaijani|ba Bashkir|be Belarusian|bg Bulgarian
bm Bambara|bn Bengali|bo Tibetan|br Breton|bs Bosnian|ca Catalan|ceb Cebuano|co Corsican|cs Czech|cv Chuvash|cy Welsh
da Danish|de German|dv Divehi|dz Dzongkha|ee Ewe|el Greek|en English|eo Esperanto|es Spanish|et Estonian|eu Basque
fa Persian|ff Fulah|fi Finnish|fil Filipino|fj Fijian|fo Faroese|fr French|fy Western Frisian|ga Irish
gd Scottish Gaelic|gl Galician|gn Guarani|gu Gujarati|gv Manx|ha Hausa|he Hebrew|hi Hindi|hr Croatian|ht Haitian Creole
hu Hungarian|hy Armenian|ia Interlingua|id Indonesian|ig Igbo|ilo Iloko|is Icelandic|it Italian|ja Japanese|jv Javanese
ka Georgian|kk Kazakh|km Khmer|kn Kannada|ko Korean|ku Kurdish|ky Kyrgyz|la Latin|lb Luxembourgish|lg Ganda
li Limburgish|ln Lingala|lo Lao|lt Lithuanian|lv Latvian|mg Malagasy|mi Maori|mk Macedonian|ml Malayalam|mn Mongolian
mr Marathi|ms Malay|mt Maltese|my Burmese|nb Norwegian Bokmål|ne Nepali|nl Dutch|nn Norwegian Nynorsk|no Norwegian
nso Northern Sotho|ny Nyanja|oc Occitan|om Oromo|or Odia|os Ossetian|pa Punjabi|pl Polish|ps Pashto|pt Portuguese
qu Quechua|rm Romansh|rn Rundi|ro Romanian|ru Russian|rw Kinyarwanda|sa Sanskrit|sc Sardinian|sd Sindhi|se Northern Sami
si Sinhala|sk Slovak|sl Slovenian|sm Samoan|sn Shona|so Somali|sq Albanian|sr Serbian|ss Swati|st Southern Sotho
su Sundanese|sv Swedish|sw Swahili|ta Tamil|te Telugu|tg Tajik|th Thai|ti Tigrinya|tk Turkmen|tl Tagalog|tn Tswana
to Tongan|tr Turkish|ts Tsonga|tt Tatar|ug Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|ve Venda|vi Vietnamese|wo Wolof|xh Xhosa
yi Yiddish|yo Yoruba|zh Chinese|zu Zulu
"""
_BY_CODE = dict(entry.split(" ", 1) for line in _NAMES.split("\n") if line for entry in line.split("|"))


def language_name(tag: str) -> str:
    """Return the name of a language, with its other subtags in brackets; of an unknown code the tag."""
    code, _, rest = tag.replace("_", "-").partition("-")
    name = _BY_CODE.get(code.lower())
    if name is None:
        return tag
    return f"{name} ({rest})" if rest else name
