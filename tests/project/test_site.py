"""The documentation site: it builds without a warning, and its links resolve."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.site_links import broken_links

ROOT = Path(__file__).parents[2]


def test_site_builds_and_its_links_resolve(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", site],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    assert (site / "api/jumok.html").is_file()
    assert broken_links(site) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<h1 id="top">Here</h1><a href="#top"></a><a href="other.html#end"></a>')
    (tmp_path / "other.html").write_text(
        '<a href="gone.html"></a><a href="index.html#top"></a><a href="https://a.b"></a>'
    )
    assert sorted(broken_links(tmp_path)) == ["index.html: other.html#end", "other.html: gone.html"]
