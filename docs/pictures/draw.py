"""Draw the pictures of the documents as SVG: `python docs/pictures/draw.py`.

Boxes have their own background and arrows a middle grey, so that the pictures suit light and dark pages.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
Area = tuple[int, int, int, int]
"""Left, top, width and height."""
GREY = "#7d8590"
DARK = "#1f2328"
FILLS = {"blue": "#dbeafe", "green": "#dcfce7", "amber": "#fef3c7", "violet": "#ede9fe", "grey": "#e5e7eb"}
BORDERS = {"blue": "#3b82f6", "green": "#22a355", "amber": "#d49a06", "violet": "#8b5cf6", "grey": "#8b949e"}
LINE = 17


class Picture:
    """Shapes of one picture, in pixels.

    Args:
        width: of the picture.
        height: of the picture.
        title: description for readers who cannot see the picture.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def box(self, area: Area, lines: Sequence[str], color: str) -> None:
        """Draw a box with centred lines; the first, or its part before a colon, is bold."""
        x, y, width, height = area
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{FILLS[color]}" '
            f'stroke="{BORDERS[color]}" stroke-width="1.5"/>'
        )
        top = y + (height - LINE * len(lines)) / 2 + 13
        for number, line in enumerate(lines):
            bold, colon, rest = line.partition(":") if number == 0 else ("", "", line)
            content = f'<tspan font-weight="600">{escape(bold + colon)}</tspan>{escape(rest)}'
            self._text((x + width / 2, top + LINE * number), content, "middle", DARK)

    def boxes(self, area: Area, step: int, texts: Sequence[str], color: str) -> None:
        """Draw a column of boxes of one line each, `step` pixels apart; the first has the area."""
        x, y, width, height = area
        for number, text in enumerate(texts):
            self.box((x, y + step * number, width, height), (text,), color)

    def label(self, x: int, y: int, text: str) -> None:
        """Write a label beside boxes."""
        self._text((x, y), escape(text), "start", GREY)

    def frame(self, area: Area, label: str) -> None:
        """Draw a dashed frame around boxes, with its label at the top left."""
        x, y, width, height = area
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="none" stroke="{GREY}" '
            'stroke-dasharray="5 4"/>'
        )
        self.label(x + 12, y + 19, label)

    def arrow(self, *points: tuple[int, int], both: bool = False) -> None:
        """Draw an arrow through points."""
        path = " ".join(f"{x},{y}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="1.8"{start} marker-end="url(#head)"/>'
        )

    def _text(self, place: tuple[float, float], content: str, anchor: str, color: str) -> None:
        x, y = place
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}">{content}</text>')

    def svg(self) -> str:
        """The picture as a file's content."""
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" '
            'font-size="13">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{GREY}"/></marker></defs>'
        )
        return "\n".join([head, f"<title>{escape(self._title)}</title>", marker, *self._parts, "</svg>", ""])


def how_it_works() -> Picture:
    """From a model to translations: the picture of README.md."""
    picture = Picture(900, 300, "A model becomes a verified bundle; a server translates with it")
    picture.frame((10, 10, 880, 125), "once")
    sources = (("Hugging Face", "checkpoint"), ("parallel text", "training"), ("your own", "PyTorch model"))
    for number, lines in enumerate(sources):
        picture.box((30 + 130 * number, 50, 115, 58), lines, "grey")
    picture.arrow((410, 79), (455, 79))
    picture.box((460, 50, 170, 58), ("export, quantize", "verify against PyTorch"), "amber")
    picture.arrow((632, 79), (675, 79))
    picture.box((680, 50, 190, 58), ("bundle", "graphs, weights, tokenizer"), "green")
    picture.frame((10, 155, 880, 135), "for every request")
    picture.box((30, 195, 140, 72), ("caller", "shell, Python,", "any gRPC client"), "grey")
    picture.arrow((172, 231), (215, 231), both=True)
    picture.box((220, 195, 150, 72), ("service", "TLS, tokens, limits,", "metrics"), "blue")
    picture.arrow((372, 231), (410, 231), both=True)
    picture.box((415, 195, 120, 72), ("queue", "bounded, with", "deadlines"), "blue")
    picture.arrow((537, 231), (575, 231), both=True)
    picture.box((580, 195, 120, 72), ("search", "greedy, beam,", "sampling"), "violet")
    picture.arrow((702, 231), (735, 231), both=True)
    picture.box((740, 195, 130, 72), ("decoder step", "ONNX Runtime", "CPU or GPU"), "violet")
    picture.arrow((805, 110), (805, 190))
    return picture


def packages() -> Picture:
    """Import packages and the direction of imports."""
    picture = Picture(900, 560, "Import packages; imports go in the direction of the arrows, and down within a package")
    picture.box((10, 20, 150, 60), ("jumok", "SDK, command line"), "grey")
    wire = "the wire: .proto files and stubs, results, options, root of the errors"
    picture.box((10, 490, 880, 56), ("jumok_proto", wire), "grey")
    picture.arrow((85, 82), (85, 486))
    picture.frame((185, 20, 350, 445), "jumok_serve")
    picture.boxes((200, 48, 320, 30), 37, ("cli: settings, serve, inspect, evaluate",), "blue")
    service = ("service: handlers, rpc, auth, telemetry, models", "evaluation, translator: a bundle at work")
    picture.boxes((200, 85, 320, 30), 37, service, "blue")
    core = (
        "text, tasks: translation, scoring, alignment",
        "engine: queue, scheduler, replicas, batches",
        "runtime: sessions, decoder step, KV cache",
        "search: greedy, beam, sampling",
    )
    picture.boxes((200, 159, 320, 30), 37, core, "violet")
    files = (
        "bundle: files on disk, shortlist",
        "tokenizers: text to token ids and back",
        "manifest: schema of manifest.json",
        "native, errors: kernels; exceptions",
    )
    picture.boxes((200, 307, 320, 30), 37, files, "green")
    picture.arrow((360, 467), (360, 486))
    picture.frame((575, 20, 315, 365), "jumok_export")
    export = (
        "cli: train, export, import, ensemble, add-native",
        "importers, training: to a checkpoint",
        "bundles: export to a verified bundle",
        "verification: against PyTorch",
        "native, device: graphs for kernels, GPUs",
        "quantization: int8 and calibration",
        "graphs, shortlists: tracing; lexicons",
        "models: Transformer, T5, recurrent",
    )
    picture.boxes((590, 50, 285, 32), 41, export, "amber")
    picture.arrow((572, 250), (538, 250))
    picture.arrow((732, 387), (732, 486))
    return picture


def translation_path() -> Picture:
    """The way of one translation through the code."""
    picture = Picture(900, 440, "A translation goes from the client through three kinds of threads and back")
    picture.frame((10, 10, 880, 120), "event loop: jumok_serve.service")
    picture.box((30, 45, 130, 62), ("1 interceptor", "id, token, rate,", "full queue"), "blue")
    picture.box((200, 45, 130, 62), ("2 handler", "TranslateText:", "read, check limits"), "blue")
    picture.box((570, 45, 130, 62), ("8 wake-up", "once per step, for", "all futures"), "blue")
    picture.box((740, 45, 130, 62), ("9 answer", "detokenize,", "to protobuf"), "blue")
    picture.arrow((162, 76), (196, 76))
    picture.arrow((702, 76), (736, 76))
    picture.frame((10, 155, 480, 110), "tokenizing thread")
    picture.box((30, 187, 190, 62), ("3 input processor", "language tokens,", "SentencePiece, length"), "green")
    picture.box((290, 187, 180, 62), ("4 Translator.submit", "a search and a future", "for each sentence"), "violet")
    picture.arrow((210, 109), (210, 183))
    picture.arrow((222, 218), (286, 218))
    picture.frame((10, 290, 880, 140), "engine thread, one per replica")
    picture.box((30, 328, 220, 80), ("5 queue, scheduler", "which sentence joins", "which replica, and when"), "violet")
    picture.box((290, 328, 120, 80), ("6 encoder", "memory [B, ..., S]", "into a slot"), "violet")
    picture.arrow((380, 251), (380, 278), (235, 278), (235, 324))
    picture.arrow((252, 368), (286, 368))
    picture.arrow((412, 368), (446, 368))
    picture.box((450, 328, 130, 80), ("7 step", "decoder graph:", "best candidates"), "violet")
    picture.box((630, 328, 130, 80), ("search", "new tokens,", "parents, scores"), "violet")
    picture.arrow((582, 355), (626, 355))
    picture.arrow((628, 385), (584, 385))
    picture.arrow((762, 368), (805, 368), (805, 222), (635, 222), (635, 111))
    picture.label(815, 260, "finished")
    return picture


def checkpoint_path() -> Picture:
    """The way of one checkpoint through the code."""
    picture = Picture(900, 440, "A checkpoint is read, exported and verified; a server opens the bundle")
    picture.frame((10, 10, 880, 120), "jumok_export: jumok import, jumok export")
    picture.box((30, 45, 150, 62), ("1 command", "folder of the bundle,", "download"), "blue")
    picture.box((240, 45, 150, 62), ("2 recognition", "by names and first", "bytes of files"), "blue")
    picture.box((450, 45, 210, 62), ("3 reading", "Hugging Face, Marian,", "CTranslate2, jumok train"), "blue")
    picture.box((720, 45, 150, 62), ("model, tokenizer", "PyTorch in fp32,", "languages, limits"), "green")
    for start, end in ((182, 236), (392, 446), (662, 716)):
        picture.arrow((start, 76), (end, 76))
    picture.arrow((795, 109), (795, 142), (150, 142), (150, 186))
    picture.frame((10, 155, 880, 120), "export_bundle")
    picture.box((30, 190, 150, 62), ("4 tracing", "ONNX graphs of", "encode, step, score"), "amber")
    picture.box((240, 190, 170, 62), ("5 quantization", "int8 and fp16 graphs", "of the traced ones"), "amber")
    picture.box((470, 190, 170, 62), ("6 rewriting", "selection, shortlist,", "CUDA, native operators"), "amber")
    picture.box((700, 190, 170, 62), ("7 verification", "a server's sessions", "against PyTorch"), "amber")
    for start, end in ((182, 236), (412, 466), (642, 696)):
        picture.arrow((start, 221), (end, 221))
    picture.arrow((785, 254), (785, 287), (105, 287), (105, 331))
    picture.box((30, 335, 150, 62), ("8 writing", "manifest, SHA-256,", "renamed at the end"), "green")
    picture.frame((240, 300, 650, 120), "jumok_serve: a server")
    picture.box((260, 335, 180, 62), ("9 trial", "decodes in a child", "process, within limits"), "violet")
    picture.box((485, 335, 170, 62), ("10 opening", "schema, SHA-256,", "tokenizer"), "violet")
    picture.box((700, 335, 170, 62), ("11 loading", "sessions on a device,", "warm-up"), "violet")
    for start, end in ((182, 256), (442, 481), (657, 696)):
        picture.arrow((start, 366), (end, 366))
    picture.label(187, 357, "bundle")
    return picture


def decoder_step() -> Picture:
    """Arrays of one decoder step."""
    picture = Picture(900, 440, "Arrays that go into and come out of one decoder step with an in-place KV cache")
    picture.label(20, 42, "from search")
    asked = ("token_ids [B, K]", "positions [B, K]", "scores [R]", "constraints: places and values")
    picture.boxes((20, 50, 240, 28), 32, asked, "violet")
    picture.label(20, 202, "KV cache: written in place")
    cache = ("places [B, K, 3]", "visible [B, K, E]", "state.*: [B, heads, E, D]")
    picture.boxes((20, 210, 240, 28), 32, cache, "green")
    picture.label(20, 332, "from the encoder, once per sentence")
    memory = ("source_lengths [B]", "memory.*: [B, heads, S, D]")
    picture.boxes((20, 340, 240, 28), 32, memory, "amber")
    picture.frame((320, 30, 280, 400), "decoder graph, one run per token")
    parts = (
        ("embedding", "token_ids, positions"),
        ("self-attention", "over the visible entries"),
        ("cross-attention", "over memory"),
        ("feed-forward", "products, activation, norm"),
        ("output projection", "logits [R, V]"),
        ("selection", "constraints, log-softmax, top-k"),
    )
    for number, lines in enumerate(parts):
        picture.box((340, 60 + 61 * number, 205, 44), lines, "blue")
        if number:
            picture.arrow((442, 43 + 61 * number), (442, 58 + 61 * number))
    picture.arrow((550, 265), (585, 265), (585, 143), (550, 143))
    picture.label(555, 208, "N x")
    picture.arrow((264, 96), (316, 96))
    picture.arrow((264, 255), (316, 255))
    picture.arrow((264, 370), (316, 370))
    picture.arrow((602, 386), (646, 386))
    picture.box((650, 335, 230, 44), ("tokens [R, C]", "best candidates of each row"), "violet")
    picture.box((650, 386, 230, 44), ("totals [R, C]", "score + log-probability"), "violet")
    picture.box((650, 60, 230, 84), ("search", "merge K x C candidates, choose", "K rows, end hypotheses"), "violet")
    picture.arrow((860, 333), (860, 148))
    picture.arrow((765, 58), (765, 14), (140, 14), (140, 26))
    picture.label(350, 10, "next step")
    picture.arrow((602, 242), (646, 242))
    picture.box((650, 220, 190, 44), ("logits [L, V]", "only if a row samples"), "grey")
    return picture


def threads() -> Picture:
    """Threads of a server, and the objects that they share."""
    picture = Picture(900, 330, "Threads of a server and the objects that they share")
    picture.box((20, 30, 200, 74), ("event loop", "calls, health, limits;", "never computes"), "blue")
    picture.box((20, 128, 200, 74), ("workers", "2 tokenize, 2 read files,", "1 scores, 1 attention"), "green")
    picture.box((20, 226, 200, 74), ("model threads", "load, try, drain", "and free models"), "grey")
    queue = ("queue, one per model", "one lock; bounded in", "sentences and tokens")
    picture.box((310, 30, 220, 90), queue, "amber")
    shared = (
        "read-only; a session for",
        "replicas together, another for",
        "the only replica at work",
    )
    picture.box((310, 190, 220, 110), ("graphs and weights", *shared), "amber")
    for number, y in enumerate((30, 128)):
        lines = (f"engine thread {number}", "its batches, KV cache,", "searches and memory arena")
        picture.box((640, y, 230, 84), lines, "violet")
    picture.box((640, 226, 230, 74), ("pool of ONNX Runtime", "threads - 1 workers per replica"), "grey")
    picture.arrow((222, 67), (306, 67))
    picture.arrow((222, 165), (265, 165), (265, 95), (306, 95))
    picture.arrow((532, 60), (636, 60))
    picture.arrow((532, 95), (585, 95), (585, 150), (636, 150))
    picture.arrow((532, 225), (590, 225), (590, 185), (636, 185), both=True)
    picture.arrow((532, 270), (636, 270), both=True)
    picture.arrow((222, 263), (306, 263))
    picture.label(228, 58, "sentences")
    picture.label(540, 51, "take")
    picture.label(228, 254, "load")
    return picture


PICTURES = {
    "how-it-works": how_it_works,
    "packages": packages,
    "translation-path": translation_path,
    "checkpoint-path": checkpoint_path,
    "decoder-step": decoder_step,
    "threads": threads,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
