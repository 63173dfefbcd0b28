"""Capacity, bottlenecks and cost of many servers, from the figures of one."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scale.simulation import Rate, interpolated

MEASURED = Path(__file__).with_name("measured.toml")
MACHINES = (1, 10, 100)
LOAD = 0.7
"""Share of a server's rate that leaves room for peaks."""
GIGABIT = 1e9 / 8
"""Bytes per second."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Figures of one server with one model; lists have an item for each number of outstanding requests.

    Attributes:
        title: name for people.
        outstanding: sentences at once.
        rates: sentences per second.
        client_ms: processor time of the client, for each sentence.
        wire_bytes: bytes of TCP for each sentence, both directions.
        start_s: seconds from the start of the process until it serves, files in memory; None: not measured.
        memory_mib: peak memory after all; None: not measured.
    """

    title: str
    outstanding: Sequence[int]
    rates: Sequence[float]
    client_ms: Sequence[float]
    wire_bytes: float
    start_s: float | None = None
    memory_mib: float | None = None

    def toml(self, name: str) -> str:
        """Format the figures as a table of TOML."""
        measured = {"start_s": self.start_s, "memory_mib": self.memory_mib}
        return (
            f'[models.{name}]\ntitle = "{self.title}"\n'
            + "".join(f"{key} = {value:.1f}\n" for key, value in measured.items() if value is not None)
            + f"outstanding = {[*self.outstanding]}\nrates = {[round(rate, 2) for rate in self.rates]}\n"
            f"client_ms = {[round(each, 2) for each in self.client_ms]}\nwire_bytes = {self.wire_bytes:.0f}\n"
        )

    @property
    def curve(self) -> Rate:
        """The service curve."""
        return interpolated([*zip(self.outstanding, self.rates, strict=True)])

    @property
    def rate(self) -> float:
        """Sentences per second of a full server."""
        return max(self.rates)

    @property
    def slots(self) -> int:
        """Sentences that a full server decodes at once, in the simulation."""
        return max(self.outstanding)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All measured figures."""

    cores: int
    characters: int
    models: Mapping[str, Model]
    fronts: Mapping[str, float]
    hosts: Sequence[Mapping[str, Any]]


def read_figures(path: Path = MEASURED) -> Figures:
    """Read the figures of one server."""
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    return Figures(
        cores=values["cores"],
        characters=values["characters"],
        models={name: Model(**model) for name, model in values["models"].items()},
        fronts=values["fronts"],
        hosts=values["hosts"],
    )


def server_table(figures: Figures) -> str:
    """Format the figures of one server."""
    rows = [
        "| model | sentences at once | sentences/s | a core | start, s | memory, MiB | bytes a sentence |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for model in figures.models.values():
        for number, rate in zip(model.outstanding, model.rates, strict=True):
            start = "not measured" if model.start_s is None else f"{model.start_s:.1f}"
            memory = "not measured" if model.memory_mib is None else f"{model.memory_mib:.0f}"
            last = f"{start} | {memory} | {model.wire_bytes:.0f}" if number == model.outstanding[-1] else " | | "
            rows.append(f"| {model.title} | {number} | {rate:.1f} | {rate / figures.cores:.1f} | {last} |")
    return "\n".join(rows)


def front_table(figures: Figures) -> str:
    """Format the processor time that fronts take."""
    fronts = figures.fronts
    return "\n".join(
        (
            "| processor time of a sentence, ms | |",
            "| --- | --- |",
            f"| server, over gRPC | {fronts['grpc_ms']:.2f} |",
            f"| server, over HTTP | {fronts['http_ms']:.2f} |",
            f"| client in Python, over gRPC | {fronts['client_ms']:.2f} |",
            f"| `jumok gateway` before the server | {fronts['gateway_ms']:.2f} |",
        )
    )


def capacity_table(figures: Figures) -> str:
    """Format the capacity of 1, 10 and 100 servers, and the load of all that is beside them."""
    rows = [
        "| model | servers | sentences/s, full | million characters a day at 70 % | network, Mbit/s | cores of clients "
        "| cores of `jumok gateway` |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for model in figures.models.values():
        for servers in MACHINES:
            rate = servers * model.rate
            day = LOAD * rate * figures.characters * 86_400 / 1e6
            bits = rate * model.wire_bytes * 8 / 1e6
            clients = rate * model.client_ms[-1] / 1e3
            gateways = rate * figures.fronts["gateway_ms"] / 1e3
            beside = f"{bits:.1f} | {clients:.1f} | {gateways:.1f}"
            rows.append(f"| {model.title} | {servers} | {rate:,.0f} | {day:,.0f} | {beside} |")
    return "\n".join(rows)


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """Servers of one model that one resource can feed."""

    name: str
    servers: Mapping[str, float]


def bottlenecks(figures: Figures) -> list[Bottleneck]:
    """Find the number of full servers that each single resource can feed, by model."""

    def feeds(name: str, sentences_a_second: Mapping[str, float]) -> Bottleneck:
        servers = {key: sentences_a_second[key] / model.rate for key, model in figures.models.items()}
        return Bottleneck(name=name, servers=servers)

    models = figures.models
    return [
        feeds("a client process (Python, one core)", {key: 1e3 / model.client_ms[-1] for key, model in models.items()}),
        feeds("a `jumok gateway` (one core)", dict.fromkeys(models, 1e3 / figures.fronts["gateway_ms"])),
        feeds("a network of 1 Gbit/s", {key: GIGABIT / model.wire_bytes for key, model in models.items()}),
    ]


def bottleneck_table(figures: Figures) -> str:
    """Format the bottlenecks."""
    titles = [f"feeds servers of {model.title}" for model in figures.models.values()]
    rows = [f"| one of these | {' | '.join(titles)} |", f"| --- |{' --- |' * len(titles)}"]
    for each in bottlenecks(figures):
        rows.append(f"| {each.name} | " + " | ".join(f"{each.servers[key]:,.0f}" for key in figures.models) + " |")
    return "\n".join(rows)


def dollars_per_million(figures: Figures, model: Model, host: Mapping[str, Any], load: float) -> float:
    """Compute the price of a million characters on a host whose cores are as fast as the measured ones."""
    characters_a_second = load * model.rate * figures.characters * host["cores"] / figures.cores
    return float(host["dollars_an_hour"] / 3600 / characters_a_second * 1e6)


def cost_table(figures: Figures) -> str:
    """Format the price of a million characters by host and model, for full servers and busy ones."""
    titles = [model.title for model in figures.models.values()]
    rows = [
        "| host | $ an hour | " + " | ".join(f"{title}, full | {title}, 10 % busy" for title in titles) + " |",
        f"| --- | --- |{' --- | --- |' * len(titles)}",
    ]
    for host in figures.hosts:
        cells = [
            f"${dollars_per_million(figures, model, host, load):.4f}"
            for model in figures.models.values()
            for load in (1.0, 0.1)
        ]
        rows.append(f"| {host['name']} ({host['date']}) | {host['dollars_an_hour']} | {' | '.join(cells)} |")
    return "\n".join(rows)
