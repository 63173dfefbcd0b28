"""Splitting of texts into sentences, and of long sentences into parts."""

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, islice

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.errors import ForeignCodeError
from jumok_serve.interrupts import check
from jumok_serve.manifest.languages import primary_language, writes_spaces
from jumok_serve.native import ForeignCode

# ruff: noqa: RUF001


def _words_of(**languages: str) -> Mapping[str, frozenset[str]]:
    return {language: frozenset(words.split()) for language, words in languages.items()}


_BEFORE_NUMBERS = _words_of(
    und="approx ca cf col dept ed eds eq eqs est et al etc ex fig figs ft gal ill in incl lb lbs max min no nos nr op "
    "oz p par pg pl pp pt pts ref refs resp sec sect sq tab tel viz vol vols vs yd yds",
    en="app art ch chap jan feb mar apr jun jul aug sept oct nov dec fl para ver",
    de="abb abs abschn anm art aufl bd bde bl bspw bzgl bzw evtl gegr gem ggf hrsg insb jan feb apr jul aug "
    "sept okt nov dez kap mind num rd s sog spez str tsd u usw v vgl z zzgl zz",
    fr="art chap éd env fasc janv févr avr juil sept oct nov déc n num paragr réf t v",
    es="aprox art av avda cap ej gral máx mín n núm pág págs párr tít v",
    it="art cap cfr circa ecc es n num pag pagg tav v",
    ru="абз авг апр вв гл дек илл июл июн корп млн млрд напр нояб ок окт прим руб сек сент ср стр табл тел тыс "
    "февр экз янв",
    pt="art aprox cap n nº núm pág págs séc",
    nl="afb art bijv blz hfdst",
    pl="art im np ok pkt por poz rys s str tj tys ul ust zob",
    sv="bl enl kap s t",
)
"""Abbreviations that small letters, numbers or brackets follow, without full stop, in small letters; `und`: of any
language."""
_TITLES = _words_of(
    en="adm brig capt cdr cmdr col cpl dr gen gov hon jr lt maj messrs mr mrs ms mt mx prof pvt rep rev sen sgt sr st",
    de="dipl dr fa fam fr frl gebr hl hr ing kfm mag med phil prof st",
    fr="av bd dr drs fg gal imp m me mgr mlle mlles mm mme mmes mr pl pr prof st ste vve",
    es="d da dr dra dña excmo excma ing lic prof profa sr sra sres sras srta srtas sta sto ud uds vd vds",
    it="arch avv dott dr egr gent geom ill ing mons on prof rag rev sig sigg sigra sra s",
    ru="акад бул г гг гор гр д дер доц им к кв ж м о обл оз пер пл пос пр просп проф р рис с св см т тов ул",
    pt="dr dra eng exmo exma prof profa sr sra srs sras srta sta sto d",
    nl="dhr dr drs ds ing ir mej mevr mr mw prof",
    pl="bp dr gen hab ks mgr płk prof ppłk św",
    sv="dr fr hr prof",
)
"""Abbreviations that names follow."""
_STARTERS = _words_of(
    de="aber alle als also am an auch auf aus bei beide bis da damit dabei dafür danach dann darauf darum das "
    "dass dazu dem den denn der deren des deshalb die dies diese dieser dieses doch dort du ein eine einem einen "
    "einer eines einige er es falls für gestern habe haben hat heute hier hinzu ich ihr ihre im in ist ja jede "
    "jeder jedes jedoch jemand jetzt kann kein keine klicken könnte man manche mancher manches mehrere mit morgen "
    "muss nach nachdem nicht niemand nun nur ob oder ohne schon sein seine seit seitdem sie siehe sind so sobald "
    "sollte sonst später trotzdem um und uns unter vgl viele vom von vor wann war waren warum was weil weiter "
    "weitere welche wenn wer werden weshalb wie wieso wir wird wo woher wohin wollte wurde wurden zu zudem zuerst "
    "zum zur zwar zwischen",
)
"""Words that often begin a sentence, of languages with full stops after ordinals."""


REACH = 64
"""Characters on each side of a boundary that the rules look at."""

_LAST_WORD = re.compile(r"(?:^|[\s(\[{«„“\"'])([^\s(\[{«„“\"']+?)\.\s*$")
_FIRST_WORD = re.compile(r"\w+")
_FIRST_LETTER = re.compile(r"[^\W\d_]")
_VOWEL = re.compile("[aeiouyäöüàâéèêëîïôùûáíóúãõåæøœаеёиоуыэюяіїєаα-ω]", re.IGNORECASE)
_OPENING = "([{"
_SAYS = re.compile(r"[\u2012-\u2015]\s*([^\W\d_])")
_ELIDED = re.compile(r"^\w{1,2}['\u2019]")
_INITIALS = re.compile(r"\w\.-\w")
_ERA = "j.-c"
"""French for Christ; it often ends a sentence, unlike initials of names."""
_NUMBER = re.compile(r"(?<!\S)\d{1,2}\Z")
_AFTER_NUMBER = re.compile(r"\.\s++(?=\S)")
"""Begins with a literal character, which makes the search ten times as fast as one for numbers."""
_BEFORE_ITEM = re.compile(r"[.!?\u2026:;)\"\u201c\u201d\u00bb]\s+\Z")
_MARKER = re.compile(
    r"""(?x)
    \(? (?: \d{1,3}(?:\.\d{1,3})* | [ivxlIVXL]{1,7} | [a-zA-Z] ) \)  # 1)  (iv)  a)
    | [\u2022\u2023\u25aa\u25e6\u25cf\u00b7*\u2013\u2014-]           # a bullet
    """
)
_STOPPED_MARKER = re.compile(r"(?:\d{1,3}(?:\.\d{1,3})*|[ivxl]{1,7}|[IVXL]{2,7}|[a-z])\.")


def ends_sentence(line: str, begin: int, end: int, language: str) -> bool:
    """True if a sentence ends at a boundary that the library found.

    Args:
        begin, end: indices of the sentence in the line; white space after it belongs to it.
        language: ISO 639 code of one language, in two letters if possible.
    """
    after = line[end : end + REACH]
    found = _LAST_WORD.search(line[max(begin, end - REACH) : end])
    if found is None:
        says = _SAYS.match(after)  # "Where?" - she asked.
        return says is None or not says[1].islower()
    word = _ELIDED.sub("", found[1])
    alone = line[begin:end].strip() if end - begin <= REACH else ""
    if _is_marker(alone):
        return True
    if _is_name_part(word, language, alone=len(alone) == 2) or _is_inside(word, after, spaced=line[end - 1].isspace()):
        return False
    if after[:1].isdigit() or after[:1] in _OPENING:
        return not _is_abbreviation(word, language)
    next_word = found[0] if (found := _FIRST_WORD.match(after)) else ""
    if next_word[:1].islower():
        # Text that begins sentences with capitals would do so here; names such as iPhone are no evidence.
        first = _FIRST_LETTER.search(line, begin, min(end, begin + REACH))
        capitals = first is not None and first[0].isupper() and next_word.islower()
        return not (capitals or _is_abbreviation(word, language))
    starters = _STARTERS.get(language, ())
    ordinal = bool(starters) and _NUMBER.fullmatch(word) is not None and next_word != ""
    return not ordinal or next_word.lower() in starters


def _is_name_part(word: str, language: str, *, alone: bool) -> bool:
    """True for titles and initials, if a name follows them."""
    initials = word.isupper() and (alone or _INITIALS.fullmatch(word) is not None) and word.lower() != _ERA
    return initials or word.lower().rpartition(".-")[2] in _TITLES.get(language, ())  # Dipl.-Ing., but not next-gen


def _is_inside(word: str, after: str, *, spaced: bool) -> bool:
    """True if an abbreviation goes on after a full stop without space."""
    return not spaced and (after[:1] == "-" or (after[:1].isalnum() and (len(word) == 1 or "." in word)))


def list_items(line: str) -> Iterator[tuple[int, int]]:
    """Yield the places of the markers ``1.``, ``2.`` and so on of a list inside of a line.

    The first one stands at the beginning or after a sentence, as do the others, in ascending order. One alone makes no
    list: it may be an ordinal.
    """
    before: tuple[int, int] | None = None
    number = 0
    for after in _AFTER_NUMBER.finditer(line):
        found = _NUMBER.search(line, max(0, after.start() - 2), after.start())
        if found is None:
            continue
        place = found.start(), after.end()
        if place[0] and not _BEFORE_ITEM.search(line, max(0, place[0] - 8), place[0]):
            continue
        if int(found[0]) == number + 1 and before is not None:
            if number == 1:
                yield before
            yield place
            before, number = place, number + 1
        elif int(found[0]) == 1:
            before, number = place, 1


def marker_length(sentence: str) -> int:
    """Return the length of a list's marker at the beginning of a sentence, white space after it included.

    A marker with a full stop is a sentence to the library: it has the length of the whole sentence.
    """
    if _is_marker(sentence):
        return len(sentence)
    found = _MARKER.match(sentence)
    if found is None:
        return 0
    rest = sentence[found.end() :]
    return len(sentence) - len(rest.lstrip()) if rest[:1].isspace() else 0


def _is_marker(sentence: str) -> bool:
    return bool(_MARKER.fullmatch(sentence) or _STOPPED_MARKER.fullmatch(sentence))


def _is_abbreviation(word: str, language: str) -> bool:
    """True if a word is a known abbreviation, or written like one."""
    known = (_BEFORE_NUMBERS["und"], _BEFORE_NUMBERS.get(language, ()), _TITLES.get(language, ()))
    if "." in word or any(word.lower() in words for words in known):
        return True
    return word.isalpha() and len(word) <= 4 and not _VOWEL.search(word)


logger = logging.getLogger(__name__)

MAX_PIECE = 2048
"""Most characters that the library sees at once. Its time grows with their square, and it holds Python's lock."""
MAX_STOPS = 64
"""Most runs of punctuation in them; in Catalan and Danish each takes the library 0.2 ms."""
MIN_PIECE = 512
"""With more stops in fewer characters, a text is split by punctuation alone: no language is written like this."""
LOOKAHEAD = ADVANCE = 4
"""Shares of a piece, as divisors: its end only shows how the sentences before go on, and the next piece begins after
its first part at the earliest."""

_SENTENCEX = ForeignCode("sentencex")
_WIDE_SPACE_BEFORE_STOP = re.compile(r"[^\S\x00-\x7f](?=\.)")
"""White space that the library fails on after a capital letter, as it takes all white space for one byte."""
_WIDE_TERMINATORS = "\u3002\uff01\uff1f\uff61\uff0e"
_TERMINAL = """
    21 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736 1803 1809
    1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f 2024 2026 203c-203d 2047-2049 2e2e 2e3c
    2e53-2e54 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb fe52 fe56-fe57
    10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1 11141-11143 111c5-111c6 111cd 111de-111df 11238-11239
    1123b-1123c 112a9 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642 1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c
    11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f 16af5 16b37-16b38 16b44 16e98 1bc9f 1da88
"""
_TERMINATORS = "".join(
    chr(code)
    for first, *_, last in (codes.split("-") * 2 for codes in _TERMINAL.split())
    for code in range(int(first, 16), int(last, 16) + 1)
)
"""Characters with the Unicode property Sentence_Terminal, as the library knows them, and the ellipsis."""
_ALL_TERMINATORS = "." + _WIDE_TERMINATORS + _TERMINATORS
_MARKED = {**dict.fromkeys(map(ord, _TERMINATORS), "."), **dict.fromkeys(map(ord, _WIDE_TERMINATORS), "\u3002")}
_COUNTED = str.maketrans({**dict.fromkeys(_ALL_TERMINATORS, "\u3002"), **dict.fromkeys(".!?", "."), "\u2026": "\u2026"})
_STOP = re.compile("[.][. \t]*|\u2026+|\u3002")
"""A run of punctuation, as the library takes it at once; other full stops than these are runs of one."""
_PLAIN_END = re.compile("(?<![.\u3002])[.\u3002]+[\"'\u201d\u2019\u00bb)\\]]*(?:\\s+(?![\\da-z])|(?<=\u3002))")
_ASTRAL_TERMINATORS = [one for one in _ALL_TERMINATORS if one > "\uffff"]
_MAYBE_STOP = re.compile(
    f"[{re.escape(''.join(set(_ALL_TERMINATORS).difference(_ASTRAL_TERMINATORS)))}"
    f"{min(_ASTRAL_TERMINATORS)}-{max(_ASTRAL_TERMINATORS)}]"
)
"""All terminators, and some letters: one range for those that are rare makes the search 15 times as fast."""
_INNER_STOP = re.compile(rf"[{re.escape(_ALL_TERMINATORS)}]\s*+[^\s.{re.escape(_TERMINATORS)}]")
"""End of a sentence with another after it, possibly."""


def sentence_spans(text: str, language: str, *, deadline: float | None = None) -> Iterator[tuple[int, int]]:
    """Yield first and end index of each sentence, without the white space around it.

    A line break always ends a sentence; a full stop after an abbreviation or an ordinal does not, although the library
    may say so. Markers of a list inside of a line are sentences of their own. A line of at most `MAX_PIECE` characters
    and `MAX_STOPS` stops is split as a whole; in a longer one, quotation marks and brackets over more than a quarter of
    a piece may be missed. The time is proportional to the text's length.

    Args:
        language: ISO 639 code of one language, without script or region.
        deadline: moment of ``time.monotonic()``; None: no limit.

    Raises:
        DeadlineExceededError: the deadline has passed.
    """
    first = 0
    for line in text.splitlines(keepends=True):
        begin = 0
        for end, sure in () if line.isspace() else _with_items(line, _ends(line, language, deadline)):
            if not sure and end < len(line) and not ends_sentence(line, begin, end, language):
                continue
            part = line[begin:end]
            if sentence := part.strip():
                start = first + begin + len(part) - len(part.lstrip())
                yield start, start + len(sentence)
            begin = end
        first += len(line)


def _with_items(line: str, ends: Iterator[int]) -> Iterator[tuple[int, bool]]:
    """Yield ends of a line in order, with True for those around markers of lists, which the library may miss."""
    items = list_items(line)
    item = next(items, None)
    last = 0
    for end in ends:
        while item is not None and item[0] < end:
            if item[0] > last:
                yield item[0], True
            last = item[1]
            yield last, True
            item = next(items, None)
        if end > last:
            yield end, False


def possible_ends(text: str) -> int:
    """Count the places where a sentence may end inside of a text, up to 16."""
    return sum(1 for _ in islice(_inner_stops(text), 16)) + len(text.split("\n", 16)) - 1


def _inner_stops(text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of `_INNER_STOP`."""
    begin = 0
    while maybe := _MAYBE_STOP.search(text, begin):
        begin = maybe.end()
        if found := _INNER_STOP.match(text, maybe.start()):
            yield found
            begin = found.end()


def _ends(line: str, language: str, deadline: float | None) -> Iterator[int]:
    """Yield the end of each sentence of a line."""
    if next(_inner_stops(line), None) is None:
        yield len(line)
        return
    begin = 0
    while begin < len(line):
        check(deadline, "a text was split into sentences")
        piece = _piece(line, begin)
        length = len(piece)
        last = begin + length == len(line)
        ends = _split(piece, language) if last or length >= MIN_PIECE else _split_plainly(piece)
        if not last:
            first, usable = length // ADVANCE, length - length // LOOKAHEAD
            ends = [end for end in ends if end <= usable]
            # A sentence that is longer goes on in the next piece.
            spaces = (end for end in range(usable, first, -1) if piece[end - 1].isspace())
            length = ends[-1] if ends and ends[-1] >= first else next(spaces, usable)
        yield from (begin + end for end in ends)
        begin += length


def _piece(line: str, begin: int) -> str:
    """Return the next piece of a line; in a long one with an even number of quotation marks if possible.

    With an odd number the library takes pairs of them for marks that do not belong together.
    """
    piece = line[begin : begin + MAX_PIECE]
    stop = next(islice(_STOP.finditer(piece.translate(_COUNTED)), MAX_STOPS, None), None)
    if stop is not None:
        piece = piece[: max(1, stop.start())]
    last, is_odd = piece.rfind('"'), begin + len(piece) < len(line) and piece.count('"') % 2
    return piece[:last] if is_odd and last >= len(piece) - len(piece) // LOOKAHEAD else piece


def _split(piece: str, language: str) -> list[int]:
    """Return the end of each sentence of a piece; by punctuation alone if the library fails."""
    from sentencex import segment  # noqa: PLC0415 - loaded only to split

    try:
        with _SENTENCEX:
            parts = segment(language, _WIDE_SPACE_BEFORE_STOP.sub(" ", piece))
    except ForeignCodeError as error:
        logger.warning("%s; the text is split at its punctuation instead", error)
        return _split_plainly(piece)
    ends = list(accumulate(map(len, parts)))
    return ends if ends and ends[-1] == len(piece) else _split_plainly(piece)  # which loses no character


def _split_plainly(piece: str) -> list[int]:
    """Return the end of each sentence of a piece by its punctuation alone."""
    return [*(found.end() for found in _PLAIN_END.finditer(piece.translate(_MARKED))), len(piece)]


MAX_SENTENCES = 4096
"""Limit for all texts of a request together."""


@dataclass(frozen=True, slots=True)
class SplitText:
    """A text's sentences, and the text before, between and after them that is not translated.

    Attributes:
        sentences: sentences, [n]; a text without any has an empty one.
        kept: white space and markers of lists, [n + 1].
    """

    sentences: tuple[str, ...]
    kept: tuple[str, ...]

    def for_target(self, language: str) -> "SplitText":
        """Replace a single or no space between sentences by the target language's."""
        space = sentence_space(language)
        first, *between, last = self.kept
        return SplitText(self.sentences, (first, *(space if kept in {"", " "} else kept for kept in between), last))


def sentence_space(language: str) -> str:
    """Return the white space that a language, given by its tag, writes between sentences."""
    return " " if writes_spaces(language) else ""


def too_many_sentences() -> InvalidArgumentError:
    """Make the error of texts with too many sentences."""
    return InvalidArgumentError(
        f"a request takes at most {MAX_SENTENCES} sentences, all texts together: send several", field="contents"
    )


def split(text: str, language: str, *, max_sentences: int = MAX_SENTENCES, deadline: float | None = None) -> SplitText:
    """Split a text into sentences by sentencex and at line breaks.

    Sentences and kept text joined in turn are the text.

    Raises:
        InvalidArgumentError: the text has more than ``max_sentences`` sentences.
        DeadlineExceededError: the deadline, in `time.monotonic()` seconds, has passed.
    """
    sentences: list[str] = []
    kept: list[str] = []
    end = 0
    for start, after in sentence_spans(text, primary_language(language), deadline=deadline):
        first = start + marker_length(text[start:after])
        if first == after:
            continue
        if len(sentences) >= max_sentences:
            raise too_many_sentences()
        kept.append(text[end:first])
        sentences.append(text[first:after])
        end = after
    if not sentences:
        return SplitText(("",), (text, ""))
    return SplitText(tuple(sentences), (*kept, text[end:]))


_PLACES = (
    re.compile(r"[;:\u2014\u2013]\s+|[\uff1b\uff1a\u061b\u037e]\s*"),  # clauses
    re.compile(r"[,\u060c]\s+|[\uff0c\u3001]\s*"),  # commas
    re.compile(r"\s+"),
)
"""Places to cut after, best first."""


def cut(sentence: str, fits: Callable[[str], bool], whole: Sequence[tuple[int, int]] = ()) -> list[str]:
    """Cut a sentence into parts that fit, each cut near the middle of a part.

    Args:
        fits: True for texts that are short enough.
        whole: places of parts that are not divided.

    Returns:
        Parts that are the sentence when concatenated, n >= 1, with white space at their ends; a part of one character
        may be one that does not fit.
    """
    inside = {index for first, after in whole for index in range(first + 1, after)}
    parts: list[str] = []
    waiting = [(0, sentence)]
    while waiting:
        first, part = waiting.pop()
        middle = 0 if fits(part) else _middle(part, first, inside)
        if middle:
            waiting += ((first + middle, part[middle:]), (first, part[:middle]))
        else:
            parts.append(part)
    return parts


def _middle(part: str, begin: int, inside: Set[int]) -> int:
    """Return the index of the best place to cut a part; 0: none.

    Args:
        begin: index of the part in its sentence.
        inside: indices of the sentence where none is cut.
    """
    length = len(part)
    for place in _PLACES:
        for share in (4, 10):  # first in the half around the middle
            first, last = length // share, length - length // share
            ends = [found.end() for found in place.finditer(part, first, last) if 0 < found.end() < length]
            ends = [end for end in ends if begin + end not in inside]
            if ends:
                return min(ends, key=lambda end: abs(2 * end - length))
    whole = (index for index in range(1, length) if not unicodedata.combining(part[index]))
    return min(
        (index for index in whole if begin + index not in inside), key=lambda index: abs(2 * index - length), default=0
    )


def joint(before: str, after: str, *, source_spaces: bool, space: str) -> str:
    """Return the text between the translations of two parts.

    Args:
        source_spaces: True if the source language writes spaces; without one, the cut is inside of a word.
        space: space between two sentences of the target language.
    """
    white = before[len(before.rstrip()) :]
    if white not in {"", " "}:
        return white
    inside = source_spaces and not white and before[-1:].isalnum() and after[:1].isalnum()
    return "" if inside else space
