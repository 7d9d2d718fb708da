"""What the records rest on: how many there are, which a commit explains, how many seeds they have, and what they decide."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from recallmap.results.analysis.labels import canonical_text
from recallmap.results.publishing.verdicts import Verdict
from recallmap.results.record import Record


def standing_table(files: Mapping[str, Sequence[Record]], verdicts: Iterable[Verdict]) -> str:
    """Markdown. A configuration is all of a trial but its seed; a record without a commit, or with one that has uncommitted
    changes, cannot be traced."""
    records = [record for own in files.values() for record in own]
    without = sum(not record.commit for record in records)
    untraceable = sum(not record.traceable for record in records)
    seeds: dict[str, set[int]] = defaultdict(set)
    for record in records:
        seeds[canonical_text({name: value for name, value in record.spec.items() if name != "seed"})].add(record.seed)
    once = sum(len(own) == 1 for own in seeds.values())
    counts = Counter(verdicts)
    rows = [
        ("records", len(records), None),
        ("that name no commit", without, len(records)),
        ("that name one with uncommitted changes", untraceable - without, len(records)),
        ("configurations, which are all of a trial but its seed", len(seeds), None),
        ("of one seed", once, len(seeds)),
        ("claims", counts.total(), None),
        ("reproduced", counts["reproduced"], counts.total()),
        ("not reproduced", counts["not reproduced"], counts.total()),
        ("not decided: more seeds would help", counts["not decided"], counts.total()),
        ("on which the records cannot speak", counts["cannot speak"], counts.total()),
    ]
    lines = ["| on record | number | share |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {count:,} | {_share(count, whole)} |" for name, count, whole in rows]
    return "\n".join([*lines, ""])


def _share(count: int, whole: int | None) -> str:
    return f"{count / whole:.0%}".replace("%", " %") if whole else ""
