"""The client for programs that wait for each answer."""

from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from types import TracebackType
from typing import Self, Unpack, overload

from jumok import _calls
from jumok._corpus.state import DEFAULT_WINDOW, make_corpus
from jumok._corpus.sync import CorpusThreads
from jumok._results import TextResult, TranslationUpdate
from jumok._transport.channel import Tls
from jumok._transport.retry import MAX_ATTEMPTS
from jumok._transport.sync import Connection
from jumok_proto.alignments import Alignment, AttentionKind
from jumok_proto.options import Options
from jumok_proto.results import Model, Score, Translation
from jumok_proto.v1.model_pb2 import ListModelsRequest


class Client:
    """A connection to a server, or to several that hold the same models; to be shared by all threads of a program.

    ``server`` is ``host:port``, or several of them: a sequence, or one string with commas. Each call goes to the next
    of them, and of a name with several addresses to the next of these; one that cannot be reached is passed over for
    some seconds. ``tls`` says how to speak TLS with them, where it is to be spoken, and ``token`` is what they know the
    caller by; it is sent over TLS only, and without raises ValueError. ``timeout_s`` bounds every call that does not
    bring its own limit. Within it a call is made up to ``max_attempts`` times, where no server can be reached or the
    queue is full, after a growing while or when the server says. All methods raise subclasses of ``JumokError``.

        with Client("localhost:50051") as client:
            print(client.translate("A man sleeps.").text)
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        tls: Tls | None = None,
        token: str | None = None,
        timeout_s: float = _calls.DEFAULT_TIMEOUT_S,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self._connection = Connection(server, tls=tls, token=token, timeout_s=timeout_s, max_attempts=max_attempts)

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Translation: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Translation | list[Translation]:
        """Translate one text, or several in one request: all are translated, or none is.

        Languages are spelled as in the model's description, or with other case, or ``_`` for ``-``; what is left out is
        the model's default. ``target_prefix`` is what the translation begins with, for several texts one for each or
        None: a hypothesis' ``text`` is the whole translation, its tokens and scores are those behind the prefix. With
        ``attention`` every hypothesis carries the cross-attention from its tokens to the translation's
        ``source_tokens``. ``truncate`` cuts texts that are too long for the model instead of refusing them.
        ``split_sentences`` translates the sentences of each text one by one, and puts them together again; there is one
        hypothesis then, and no attention. ``model``
        may be left out where the server holds only one. ``Options`` describes the decoding options; one that there is
        not is a TypeError.
        """
        request = _calls.translate_request(
            texts,
            source_language=source_language,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            model=model,
            options=options,
        )
        response = self._connection.call(lambda stubs: stubs.translation.TranslateText, request, timeout_s)
        translations = _calls.read_translations(response, len(request.contents))
        return translations[0] if isinstance(texts, str) else translations

    @overload
    def score(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        targets: str,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Score: ...

    @overload
    def score(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> list[Score]: ...

    def score(
        self,
        texts: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Score | list[Score]:
        """Score a given translation of one text, or one of each of several in one request.

        The scores are the model's own log-probabilities: decoding options and constraints take no part. Sums are
        divided by length ** ``length_penalty``, which is the model's default where it is left out. A text without
        content has only the empty translation, with score 0. The rest is as in ``translate``.
        """
        request = _calls.score_request(
            texts,
            targets,
            source_language=source_language,
            target_language=target_language,
            length_penalty=length_penalty,
            truncate=truncate,
            model=model,
        )
        response = self._connection.call(lambda stubs: stubs.translation.ScoreText, request, timeout_s)
        scores = _calls.read_scores(response, len(request.contents))
        return scores[0] if isinstance(texts, str) else scores

    @overload
    def align(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self,
        texts: str,
        targets: str | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Alignment: ...

    @overload
    def align(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> list[Alignment]: ...

    def align(
        self,
        texts: str | Sequence[str],
        targets: str | Sequence[str | None] | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        model: str = "",
        timeout_s: float | None = None,
    ) -> Alignment | list[Alignment]:
        """Give the attention of one text and a translation of it, or of several in one request.

        A text whose target is left out, None or empty is aligned with the best translation that the model finds with
        its default options. ``kinds`` says what attends to what: ``"cross"``, ``"encoder"``, ``"decoder"``; see
        ``AttentionKind``. ``layer`` and ``head``, counted from 0, ask for that of one alone. Weights are the mean over
        layers and heads; with ``each_head`` each one's come too. A model without such attention raises
        FailedPreconditionError, a layer or head that it does not have, or more weights in all than a request takes (2 ** 23)
        InvalidArgumentError. The rest is as in ``translate``.
        """
        request = _calls.align_request(
            texts,
            targets,
            kinds=kinds,
            layer=layer,
            head=head,
            each_head=each_head,
            source_language=source_language,
            target_language=target_language,
            truncate=truncate,
            model=model,
        )
        response = self._connection.call(lambda stubs: stubs.translation.AlignText, request, timeout_s)
        alignments = _calls.read_alignments(response, len(request.contents))
        return alignments[0] if isinstance(texts, str) else alignments

    def translate_stream(
        self,
        text: str,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generator[TranslationUpdate, None, None]:
        """Translate one text, and give what is sure of its translation while it is written; the last update has it all.

        Greedy search and sampling give token by token. Beam search is sure of what all hypotheses that can still win
        share, so that nothing is taken back; that can be little until its end. Who reads slowly gets fewer updates.
        The arguments are those of ``translate``. An iteration that ends early, or is closed, cancels the call.

            for update in client.translate_stream("A man sleeps."):
                print(update.added, end="", flush=True)
            print(update.translation.score)
        """
        request = _calls.stream_request(
            text,
            source_language=source_language,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            model=model,
            options=options,
        )
        return self._connection.stream(request, timeout_s)

    def translate_iter(
        self,
        lines: Iterable[str],
        *,
        window: int = DEFAULT_WINDOW,
        start: int = 0,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        model: str = "",
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Generator[TextResult, None, None]:
        """Translate any number of texts, and give their results in order as they come.

        A text that cannot be translated does not stop the others: its result's ``error`` says why, and its
        ``translation`` raises that. So ``[result.translation for result in client.translate_iter(lines)]`` fails with
        the first bad text, and who looks at ``error`` goes on.

        ``lines`` are read in a thread of their own, up to ``window`` of them (1 to 1024) beyond the last result that
        was taken, and no more are held in memory. When a server stops, restarts or is lost, what has no result yet is
        sent again, to another where there are several: no result is lost, given twice or out of order. The iteration
        fails, after the results before, where ``timeout_s`` passes without any answer to the texts that wait for one,
        where no server answers the first in ``max_attempts`` calls, and where ``lines`` raise anything, with that.

        A program that stopped itself goes on with ``start``, one more than the ``index`` of the last result that it has
        kept: so many of ``lines`` are passed over. ``target_prefix`` begins every translation; the rest is as in
        ``translate``. Where an iteration is left early, ``close`` it, or use ``contextlib.closing``.
        """
        corpus = make_corpus(
            self._connection.endpoints,
            window=window,
            start=start,
            source_language=source_language,
            target_language=target_language,
            target_prefix=target_prefix,
            attention=attention,
            truncate=truncate,
            split_sentences=split_sentences,
            model=model,
            timeout_s=self._connection.limit(timeout_s),
            max_attempts=self._connection.max_attempts,
            options=options,
        )
        self._connection.check_open()
        texts = islice(lines, start, None)
        return CorpusThreads(corpus, texts, self._connection.open_corpus, self._connection.is_open).results()

    def list_models(self, *, timeout_s: float | None = None) -> list[Model]:
        """List the server's models, sorted by name."""
        return _calls.read_models(
            self._connection.call(lambda stubs: stubs.models.ListModels, ListModelsRequest(), timeout_s)
        )

    def get_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Describe one model; raise NotFoundError where the server has none of that name."""
        request = _calls.get_model_request(name)
        return _calls.read_model(self._connection.call(lambda stubs: stubs.models.GetModel, request, timeout_s))

    def close(self) -> None:
        """Close the connection; calls that still run fail with CallCancelledError, and further ones with ValueError."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
