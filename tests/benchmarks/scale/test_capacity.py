"""Capacity and cost of many servers, worked by hand, and the tables of docs/scale.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale.__main__ import tables
from benchmarks.scale.capacity import Figures, Model, bottlenecks, capacity_table, dollars_per_million, read_figures

DOCUMENT = Path(__file__).parents[3] / "docs/scale.md"
MODEL = Model(
    title="tiny",
    start_s=1.0,
    memory_mib=100.0,
    outstanding=[1, 64],
    rates=[20.0, 50.0],
    client_ms=[1.0, 0.5],
    wire_bytes=1250.0,
)
HOST = {"name": "host", "cores": 4, "dollars_an_hour": 0.36, "date": "2026"}
FIGURES = Figures(cores=2, characters=100, models={"tiny": MODEL}, fronts={"gateway_ms": 2.0}, hosts=[HOST])


def test_a_million_characters_cost_what_is_worked_by_hand() -> None:
    """Four cores: 100 sentences/s, 10,000 characters/s, 100 s for a million, at $0.0001 a second."""
    assert dollars_per_million(FIGURES, MODEL, HOST, 1.0) == pytest.approx(0.01)
    assert dollars_per_million(FIGURES, MODEL, HOST, 0.1) == pytest.approx(0.1)


def test_each_resource_feeds_what_is_worked_by_hand() -> None:
    """At 50 sentences/s a server: a client makes 2,000, a gateway 500, and a network of 125 MB/s carries 100,000."""
    assert [each.servers["tiny"] for each in bottlenecks(FIGURES)] == pytest.approx([40, 10, 2000])


def test_many_servers_have_the_capacity_that_is_worked_by_hand() -> None:
    rows = capacity_table(FIGURES).splitlines()[2:]
    assert rows[0] == "| tiny | 1 | 50 | 302 | 0.5 | 0.0 | 0.1 |"
    assert rows[2] == "| tiny | 100 | 5,000 | 30,240 | 50.0 | 2.5 | 10.0 |"


def test_measured_figures_are_written_as_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "measured.toml"
    head = "cores = 2\ncharacters = 100\n"
    rest = "[fronts]\ngateway_ms = 2.0\n[[hosts]]\nname = 'host'\n"
    file.write_text(head + replace(MODEL, start_s=1.04).toml("tiny") + rest)
    (read,) = read_figures(file).models.values()
    assert read == MODEL
    assert (read.rate, read.slots) == (50.0, 64)
    assert read.curve(8) == pytest.approx(35.0)


def test_the_document_has_the_tables_of_the_measured_figures() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    assert [line for line in tables(read_figures()).splitlines() if line not in document] == []
