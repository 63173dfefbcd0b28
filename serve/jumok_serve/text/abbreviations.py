"""Abbreviations that do not end a sentence, and words that begin one, by language."""

# ruff: noqa: RUF001

from collections.abc import Mapping

_ANY = """
    approx ca cf col dept ed eds eq eqs est et al etc ex fig figs ft gal ill in incl lb lbs max min no nos nr op oz p
    par pg pl pp pt pts ref refs resp sec sect sq tab tel viz vol vols vs yd yds
"""
_BEFORE_NUMBERS = {
    "en": "app art ch chap jan feb mar apr jun jul aug sept oct nov dec fl para st ver",
    "de": "abb abs abschn anm art aufl bd bde bl bspw bzgl bzw evtl gegr gem ggf hrsg insb jan feb apr jul aug "
    "sept okt nov dez kap mind num rd s sog spez str tsd u usw v vgl z zzgl zz",
    "fr": "art av chap cf éd env fasc janv févr avr juil sept oct nov déc n num paragr réf t v",
    "es": "aprox art av avda cap ed ej fig gral máx mín n núm p pág págs párr tel tít v vol",
    "it": "art cap cfr circa ecc es fig n num pag pagg par s tav v vol",
    "ru": "абз авг апр вв гл дек илл им июл июн кв корп млн млрд напр нояб обл ок окт пер пл прим рис руб сек сент "
    "см ср стр табл тел тыс ул февр экз янв",
    "pt": "art aprox cap ed fig n nº núm pág págs séc tel vol",
    "nl": "afb art bijv blz ca fig hfdst nr par tab",
    "pl": "art im np nr ok pkt por poz prof rys s str tab tj tys ul ust zob",
    "sv": "bl ca enl ex fig kap nr s tab t",
}
_TITLES = {
    "en": "adm brig capt cdr cmdr col cpl dr gen gov hon jr lt maj messrs mr mrs ms mt mx prof pvt rep rev sen "
    "sgt sr st",
    "de": "dipl dr fa fam fr frl gebr hl hr ing kfm mag med phil prof st",
    "fr": "av bd dr drs fg gal imp m me mgr mlle mlles mm mme mmes mr pl pr prof st ste vve",
    "es": "d da dr dra dña excmo excma ing lic prof profa sr sra sres sras srta srtas sta sto ud uds vd vds",
    "it": "arch avv dott dr egr gent geom ill ing mons on prof rag rev sig sigg sigra sra s",
    "ru": "акад бул г гг гор гр д дер доц им к кв ж м о обл оз пер пл пос пр просп проф р рис с св см т тов ул",
    "pt": "dr dra eng exmo exma prof profa sr sra srs sras srta sta sto d",
    "nl": "dhr dr drs ds ing ir mej mevr mr mw prof",
    "pl": "bp dr gen hab ks mgr płk prof ppłk św",
    "sv": "dr fr hr prof",
}
_STARTERS = {
    "de": "aber alle als also am an auch auf aus bei beide bis da damit dabei dafür danach dann darauf darum "
    "das dass dazu dem den denn der deren des deshalb die dies diese dieser dieses doch dort du ein eine "
    "einem einen einer eines einige er es falls für gestern habe haben hat heute hier hinzu ich ihr ihre im in ist "
    "ja jede jeder jedes jedoch jemand jetzt kann kein keine klicken könnte man manche mancher manches mehrere "
    "mit morgen muss nach nachdem nicht niemand nun nur ob oder ohne schon sein seine seit seitdem "
    "sie siehe sind so sobald sollte sonst später trotzdem um und uns unter vgl viele vom von vor wann war waren "
    "warum was weil weiter weitere welche wenn wer werden weshalb wie wieso wir wird wo woher wohin wollte wurde "
    "wurden zu zudem zuerst zum zur zwar zwischen",
}


def _words(*lists: str) -> frozenset[str]:
    return frozenset(word for words in lists for word in words.split())


_TITLES_OF: Mapping[str, frozenset[str]] = {language: _words(words) for language, words in _TITLES.items()}
_ABBREVIATIONS_OF: Mapping[str, frozenset[str]] = {
    language: _words(_ANY, words, _TITLES.get(language, "")) for language, words in _BEFORE_NUMBERS.items()
}
_OF_ANY_LANGUAGE = _words(_ANY)
_STARTERS_OF: Mapping[str, frozenset[str]] = {language: _words(words) for language, words in _STARTERS.items()}
_NONE: frozenset[str] = frozenset()


def titles(language: str) -> frozenset[str]:
    """Return abbreviations that names follow, without full stop, in small letters."""
    return _TITLES_OF.get(language, _NONE)


def abbreviations(language: str) -> frozenset[str]:
    """Return abbreviations that small letters, numbers or brackets follow."""
    return _ABBREVIATIONS_OF.get(language, _OF_ANY_LANGUAGE)


def sentence_starters(language: str) -> frozenset[str]:
    """Return words that often begin a sentence, of languages with full stops after ordinals; others have none."""
    return _STARTERS_OF.get(language, _NONE)
