"""Language codes that begin texts, as in ``>>deu<< Good morning``."""

import re
from collections import Counter

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.manifest.languages import MAX_LISTED, Direction, Languages
from jumok_serve.tokenizers.tokenizer import Tokenizer

_ANY_CODE = re.compile(r">>[^<>\s]+<<")


class LanguageCodes:
    """Spellings of the tokens that choose a target language; plain words are none."""

    def __init__(self, languages: Languages, tokenizer: Tokenizer) -> None:
        before = [(tag, token) for tag, target in languages.targets.items() for token in target.source_prefix]
        first = [
            (tag, token)
            for tag, target in languages.targets.items()
            for token in (target.start, target.forced_first)
            if token is not None
        ]
        uses = Counter(token for _, token in (*before, *first))
        spelled = [
            *((tag, tokenizer.source_tokens([token])[0], token) for tag, token in before),
            *((tag, tokenizer.tokens([token])[0], token) for tag, token in first),
        ]
        self._tags = {code: tag for tag, code, token in spelled if uses[token] == 1 and code and not code.isalpha()}
        self._known = {code for _, code, _ in spelled}
        self._before_texts = {tokenizer.source_tokens([token])[0] for _, token in before} & self._tags.keys()
        longest_first = sorted(self._tags, key=len, reverse=True)
        # A code in letters must end as a word does.
        codes = "|".join(re.escape(code) + (r"(?!\w)" if code[-1].isalnum() else "") for code in longest_first)
        self._beginning = re.compile(rf"\s*+({codes})") if codes else None
        self._marked = any(_ANY_CODE.fullmatch(code) for code in self._before_texts)

    def without(self, text: str, direction: Direction, *, field: str) -> str:
        """Remove the target language's code from the beginning of a text, if the model reads it there.

        Raises:
            InvalidArgumentError: the text begins with another code.
        """
        if self._beginning is None:
            return text
        found = self._beginning.match(text)
        if found is None:
            self._check_unknown(text, field)
            return text
        code = found[1]
        tag = self._tags[code]
        if code not in self._before_texts:
            raise InvalidArgumentError(
                f"the text begins with the language code {code!r}: name source and target language in the request, and "
                "leave the code out",
                field=field,
            )
        if tag != direction.target:
            raise InvalidArgumentError(
                f"the text begins with {code!r}, and the target language is {direction.target}: name {tag} as target "
                "language, or leave the code out",
                field=field,
            )
        return text[found.end() :]

    def _check_unknown(self, text: str, field: str) -> None:
        found = _ANY_CODE.match(text) if self._marked else None
        if found is None or found[0] in self._known:
            return
        codes = sorted(self._before_texts)
        more = f" and {len(codes) - MAX_LISTED} more" if len(codes) > MAX_LISTED else ""
        raise InvalidArgumentError(
            f"the text begins with {found[0]!r}, which is no code of the model; its codes are "
            f"{', '.join(codes[:MAX_LISTED])}{more}",
            field=field,
        )
