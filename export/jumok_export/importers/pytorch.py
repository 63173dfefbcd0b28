"""Recognition of OpenNMT-py and fairseq checkpoints; nothing is unpickled."""

import zipfile
import zlib
from pathlib import Path

_ENDINGS = (".pt", ".pth")
_MOST_BYTES = 16 * 2**20
"""Bytes of a file that are searched for names."""
_FAIRSEQ = (b"fairseq", b"optimizer_history", b"last_optimizer_state")
_OPENNMT = (b"onmt", b"generator")
"""Names in the pickles of the two."""
_NO_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Errors of files that are no zip, as before version 1.6 of PyTorch, or a damaged one."""


def find_checkpoint(path: Path) -> str | None:
    """Describe the training checkpoint in a file or folder; None without one.

    The description names the way to import it.
    """
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in files if file.suffix in _ENDINGS and file.is_file()]
    if not files:
        return None
    file, folder = files[0], files[0].parent
    for kind, names, converter in (
        ("fairseq", _FAIRSEQ, f"ct2-fairseq-converter --model_path {file} --data_dir {folder} --output_dir FOLDER"),
        ("OpenNMT-py", _OPENNMT, f"ct2-opennmt-py-converter --model_path {file} --output_dir FOLDER"),
    ):
        head = _pickle(file)
        if any(name in head for name in names):
            return (
                f"{file} is a checkpoint of {kind}, which is not imported: CTranslate2 converts it, and its folder can "
                f"be imported: pip install ctranslate2, {converter}, jumok import FOLDER"
            )
    return (
        f"{file} is a PyTorch file without a known model: CTranslate2 converts checkpoints of OpenNMT-py and fairseq, "
        "and its folder can be imported; export a model of your own as docs/own-model.md says"
    )


def _pickle(file: Path) -> bytes:
    """The beginning of the pickle in a PyTorch file, of either layout."""
    try:
        with zipfile.ZipFile(file) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if not pickles:
                return b""
            with archive.open(pickles[0]) as stream:
                return stream.read(_MOST_BYTES)
    except _NO_ZIP:
        with file.open("rb") as stream:
            return stream.read(_MOST_BYTES)
