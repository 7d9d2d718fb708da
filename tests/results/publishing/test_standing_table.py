"""What the records rest on, counted."""

from __future__ import annotations

from recallmap.results.publishing.standing_table import standing_table
from tests.results.conftest import Make


def test_seeds_of_one_configuration_count_once_and_commits_with_changes_do_not_explain(make: Make) -> None:
    records = [make(seed=0, commit=None), make(seed=1, commit="abc+")]
    other = make(seed=0, training={"steps": 7}, commit="abc")
    lines = standing_table({"a": records, "b": [other]}, ["reproduced", "cannot speak", "cannot speak"]).splitlines()
    assert lines[2:] == [
        "| records | 3 |  |",
        "| that name no commit | 1 | 33 % |",
        "| that name one with uncommitted changes | 1 | 33 % |",
        "| configurations, which are all of a trial but its seed | 2 |  |",
        "| of one seed | 1 | 50 % |",
        "| claims | 3 |  |",
        "| reproduced | 1 | 33 % |",
        "| not reproduced | 0 | 0 % |",
        "| not decided: more seeds would help | 0 | 0 % |",
        "| on which the records cannot speak | 2 | 67 % |",
    ]
