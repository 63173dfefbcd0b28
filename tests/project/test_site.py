"""The documentation site: it builds without a warning, and its links resolve."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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
    assert broken_links(site) == []
    assert not list(site.rglob("__pycache__"))
    api = (site / "api/jumok_serve.html").read_text(encoding="utf-8")
    assert "[source tokens][source tokens]" in api  # and no link
    assert "][]" not in api
    observe = (site / "operations/observe.html").read_text(encoding="utf-8")
    assert "<code>deploy/alerts.yml</code> in the repository" in observe
    assert '<code class="option">--metrics-port 9464</code>' in observe


def test_links_out_of_the_site_become_paths() -> None:
    hooks = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/site_hooks.py")))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="operations/deploy.md"))
    given = "[rules](../../deploy/alerts.yml#x), [LICENSE](../../LICENSE), [models](models.md), [home](../index.md)"
    assert hooks.on_page_markdown(given, page=page) == (
        "rules (`deploy/alerts.yml` in the repository), `LICENSE` in the repository, [models](models.md), "
        "[home](../index.md)"
    )
    assert hooks.on_page_content("<p><code>-v</code> <code>--a b</code> <code>a-b</code> <code>- x</code></p>") == (
        '<p><code class="option">-v</code> <code class="option">--a b</code> <code>a-b</code> <code>- x</code></p>'
    )


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<h1 id="top">Here</h1><a href="#top"></a><a href="other.html#end"></a>')
    (tmp_path / "other.html").write_text(
        '<a href="gone.html"></a><a href="index.html#top"></a><a href="https://a.b"></a>'
    )
    assert sorted(broken_links(tmp_path)) == ["index.html: other.html#end", "other.html: gone.html"]
