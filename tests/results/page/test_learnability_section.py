"""The page's section on online learners: a panel a learner, a line a mapping, and none where there is nothing to show."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from recallmap.results.page.dashboard import page
from recallmap.results.page.learnability_section import section
from recallmap.results.record import Record

LOSSES = {"low_rank": (1.0, 0.6, 0.1), "mlp": (1.0, 0.8, 0.5)}


def online(*, hidden: int = 2, mapping: str = "low_rank", seed: int = 0, optimizer: str = "adamw") -> Record:
    losses = [loss + 0.04 * seed for loss in LOSSES[mapping]]
    return Record(
        key=f"{hidden}{mapping}{seed}{optimizer}",
        study="made_up",
        status="done",
        spec={
            "kind": "online",
            "task": {"kind": "learnability", "mapping": mapping, "width": 16, "length": 96},
            "arch": {"hidden": hidden, "expand": 1, "optimizer": optimizer},
            "seed": seed,
        },
        task="learnability",
        setting=f"mapping={mapping}",
        protocol="repaired",
        arch=f"mlp {hidden}x1",
        seed=seed,
        metric="explained",
        scores={"explained": 0.5},
        curve={"step": [32, 64, 96], "validation_loss": losses, "validation_accuracy": [1 - x for x in losses]},
        length=96,
    )


RECORDS = [online(hidden=h, mapping=m, seed=s) for h in (2, 3) for m in LOSSES for s in (0, 1)]


def panels(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg viewBox.*?</svg>", text, re.DOTALL)]


def test_every_learner_has_a_panel_and_every_mapping_a_line() -> None:
    found = panels(section(RECORDS))
    assert [panel.find("text").text for panel in found] == [  # type: ignore[union-attr]
        "2 hidden layers, expansion 1",
        "3 hidden layers, expansion 1",
    ]
    assert [len(panel.findall("polyline")) for panel in found] == [2, 2]
    assert [len(panel.findall("polygon")) for panel in found] == [2, 2]


def test_a_line_falls_where_its_loss_does() -> None:
    (low_rank, mlp) = panels(section(RECORDS))[0].findall("polyline")
    heights = [[float(point.split(",")[1]) for point in line.attrib["points"].split()] for line in (low_rank, mlp)]
    assert heights[0] == sorted(heights[0])  # SVG counts downwards
    assert heights[0][0] == heights[1][0]
    assert heights[0][2] > heights[1][2]


def test_what_it_says_is_the_mean_over_seeds_best_first() -> None:
    text = section(RECORDS)
    assert "best first: low rank 0.12, MLP 0.52." in text
    assert "means over 2 seeds" in text
    assert "mean over 32 positions" in text


def test_learners_of_one_size_are_told_apart() -> None:
    text = section([online(), online(optimizer="sgd")])
    assert "2 hidden layers, expansion 1, optimizer=sgd" in text
    assert len(panels(text)) == 2


@pytest.mark.parametrize("records", [[], [online()]], ids=["none", "one"])
def test_the_page_has_the_section_where_there_is_something_to_show(records: list[Record]) -> None:
    assert ('<section id="online"' in page(records, title="made up", tables=[])) == bool(records)
