"""The small tables of README.md and results/README.md: figures of the records' tables, arranged for a text.

A text asks for one by a line `<!-- excerpt: NAME -->`, a blank one and the table, which is made anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

from recallmap.results.score_tables.rendering import cell_text, shown
from recallmap.results.score_tables.table import Cell, Line, Table, Unit

_NAMES = "Names. "  # begins the line below a table that says what it names like another model

_MARK = re.compile(rf"^<!-- excerpt: (.*) -->\n(?:\n?(?:\|.*\n)+(?:\n{_NAMES}.*\n)?)?", re.MULTILINE)


class Place(TypedDict, total=False):
    """Where a figure stands, or a part of that.

    records  the file of records
    row      the architecture's row there; `at` stands where it has {}
    column   its column
    of       the score, the score with its interval, the figure published beside it, or the size of the state
    beside   a part of the published source's name
    """

    records: str
    row: str
    at: str
    column: str
    of: Literal["score", "spread", "published", "state"]
    beside: str


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """A table by the heads of its columns and rows. Each says a part of where its figures stand; where several say the same
    part, a column goes before a row, and a row before `every`."""

    corner: str
    every: Place
    across: Mapping[str, Place]
    down: Mapping[str, Place]

    def markdown(self, name: str, tables: Mapping[str, Sequence[Table]]) -> str:
        """The table, blank where nothing was trained, and below it what its heads name like another model. Raises ValueError
        on a column or a row that is blank throughout: what it names there is not."""
        found = {
            (row, column): _found({**self.every, **self.down[row], **self.across[column]}, tables)
            for row in self.down
            for column in self.across
        }
        figures = {place: text for place, (text, _) in found.items()}
        for heads, axis in ((self.down, 0), (self.across, 1)):
            for head in heads:
                if not any(text for place, text in figures.items() if place[axis] == head):
                    raise ValueError(f"excerpt {name}: '{head}' has no figure in these records")
        lines = [[self.corner, *self.across], ["---", *["---:"] * len(self.across)]]
        lines += [[row, *(figures[row, column] for column in self.across)] for row in self.down]
        table = "".join(f"|{''.join(f' {cell} |' if cell else ' |' for cell in line)}\n" for line in lines)
        about: dict[str, dict[str, None]] = {}
        for (row, column), (_, remark) in found.items():
            if remark:
                about.setdefault(remark, {})[column if "row" in self.across[column] else row] = None
        names = " ".join(f"{' / '.join(heads)}: {remark}." for remark, heads in about.items())
        return f"{table}\n{_NAMES}{names}\n" if names else table


def filled(text: str, tables: Mapping[str, Sequence[Table]]) -> str:
    """A text with each of its excerpts made from the tables of the record files, by name. Raises ValueError where it asks for
    one that there is not, or that these records do not have."""

    def made(mark: re.Match[str]) -> str:
        name = mark[1]
        if name not in EXCERPTS:
            raise ValueError(f"there is no excerpt '{name}', only {', '.join(EXCERPTS)}")
        end = "" if text[mark.end() : mark.end() + 1] in ("", "\n") else "\n"  # what follows is no row of it
        return f"<!-- excerpt: {name} -->\n\n{EXCERPTS[name].markdown(name, tables)}{end}"

    return _MARK.sub(made, text)


def _found(place: Place, tables: Mapping[str, Sequence[Table]]) -> tuple[str, str]:
    """The figure that stands there, and the remark on its line; "" for both where there is none."""
    row = place["row"].format(place.get("at", ""))
    for table in tables.get(place["records"], ()):
        if place.get("beside", "") in table.beside and place["column"] in table.columns:
            at = table.columns.index(place["column"])
            for line in table.lines:
                if line.kind == "measured" and line.labels[0] == row:
                    return _text(line, line.cells[at], table.units[at], place["of"]), line.remark
    return "", ""


def _text(line: Line, cell: Cell, unit: Unit, of: str) -> str:
    if of == "state":
        return "grows" if line.labels[1].endswith("grows") else line.labels[1]
    if of == "published":
        return "" if cell.published is None else shown(cell.published, unit)
    return cell_text(line, cell if of == "spread" else replace(cell, interval=None), unit)


_WIDTHS: Place = {"records": "mqar_zoology", "column": "mean", "of": "score"}

_FOUR_WIDTHS: dict[str, Place] = {width: {"at": width} for width in ("32", "48", "64", "96")}

_FOUR_WIDTHS["state at 64"] = {"at": "64", "of": "state"}

EXCERPTS: dict[str, Excerpt] = {
    "demo": Excerpt(
        corner="memory",
        every={"records": "demo", "of": "spread"},
        across={
            "state": {"column": "mean", "of": "state"},
            "4 pairs": {"column": "length 64, pairs 4"},
            "8 pairs": {"column": "length 64, pairs 8"},
        },
        down={
            "window of 8 tokens": {"row": "sliding_window window=8"},
            "linear attention": {"row": "linear_attention key_dim=16 value_dim=16"},
            "Gated DeltaNet": {"row": "gated_deltanet key_dim=16 value_dim=16"},
            "Mamba-2": {"row": "mamba2 key_dim=16 value_dim=16"},
            "Mesa": {"row": "mesa key_dim=8 value_dim=24"},
            "window of 32 tokens": {"row": "sliding_window window=32"},
            "linear attention, wider": {"row": "linear_attention key_dim=32 value_dim=32"},
            "Gated DeltaNet, wider": {"row": "gated_deltanet key_dim=32 value_dim=32"},
            "Mamba-2, wider": {"row": "mamba2 key_dim=32 value_dim=32"},
            "Mesa, wider": {"row": "mesa key_dim=16 value_dim=48"},
            "attention": {"row": "attention head_dim=8"},
        },
    ),
    "mad-memorization": Excerpt(
        corner="memorization",
        every={"records": "mad_memorization", "column": "mean", "of": "score", "beside": "MesaNet"},
        across={
            "attention": {"row": "attention init={}"},
            "Titans": {"row": "titans init={}", "beside": "ATLAS"},
            "Hawk": {"row": "hawk init={}"},
            "Hawk-Mesa": {"row": "hawk_mesa init={}"},
            "mLSTM": {"row": "mlstm init={}"},
            "GLA": {"row": "gla init={}"},
            "Gated DeltaNet": {"row": "gated_deltanet_mesanet init={}"},
            "Mamba-2": {"row": "mamba2 init={}"},
            "Mesa": {"row": "mesa init={}"},
            "DeltaNet": {"row": "deltanet_mesanet init={}"},
        },
        down={
            "weights that begin small": {"at": "normal"},
            "published": {"at": "normal", "of": "published"},
            "weights that begin large": {"at": "fan_in"},
        },
    ),
    "mad": Excerpt(
        corner="",
        every={"records": "mad", "beside": "MesaNet"},
        across={
            "average, small": {"column": "average", "records": "mad_normal", "of": "score"},
            "average, large": {"column": "average", "of": "spread"},
            "average, published": {"column": "average", "of": "published"},
            "fuzzy recall, small": {"column": "fuzzy recall", "records": "mad_normal", "of": "score"},
            "fuzzy recall, large": {"column": "fuzzy recall", "of": "spread"},
            "fuzzy recall, published": {"column": "fuzzy recall", "of": "published"},
            "compression, small": {"column": "compression", "records": "mad_normal", "of": "score"},
            "compression, large": {"column": "compression", "of": "spread"},
            "compression, published": {"column": "compression", "of": "published"},
            "state": {"column": "average", "of": "state"},
        },
        down={
            "attention": {"row": "attention"},
            "Mesa": {"row": "mesa"},
            "Hawk-Mesa": {"row": "hawk_mesa"},
            "mLSTM": {"row": "mlstm"},
            "GLA": {"row": "gla"},
            "Gated DeltaNet": {"row": "gated_deltanet_mesanet"},
            "DeltaNet": {"row": "deltanet_mesanet"},
            "Mamba-2": {"row": "mamba2"},
            "Hawk": {"row": "hawk"},
            "Atlas": {"row": "atlas"},
            "OmegaNet": {"row": "omeganet safety=4"},
            "Titans": {"row": "titans safety=4"},
            "window of 64": {"row": "swa"},
        },
    ),
    "mqar-beside-zoology": Excerpt(
        corner="",
        every={"records": "mqar_zoology_paper", "column": "mean", "beside": "Zoology"},
        across={
            "attention 64": {"row": "conv_attention"},
            "DeltaNet 64": {"row": "conv_deltanet width=64"},
            "DeltaNet 128": {"row": "conv_deltanet width=128"},
            "Gated DeltaNet 64": {"row": "conv_gated_deltanet value_dim=64 width=64"},
            "Gated DeltaNet 128": {"row": "conv_gated_deltanet value_dim=128 width=128"},
            "GLA 64": {"row": "conv_gla_vector key_dim=16 width=64"},
            "GLA 128": {"row": "conv_gla_vector key_dim=32 width=128"},
            "RWKV-7 128": {"row": "conv_rwkv7"},
        },
        down={"here": {"of": "score"}, "published": {"of": "published"}},
    ),
    "mqar-widths": Excerpt(
        corner="width",
        every=_WIDTHS,
        across={
            "attention": {"row": "conv_attention width={}"},
            "Mesa": {"row": "conv_mesa width={}"},
            "GLA, scalar gate": {"row": "conv_gla width={}"},
            "Mamba-2": {"row": "conv_mamba2 width={}"},
            "mLSTM": {"row": "conv_mlstm width={}"},
            "RWKV-7": {"row": "conv_rwkv7 heads=2 width={}"},
            "linear attention": {"row": "conv_linear_attention width={}"},
            "Gated DeltaNet": {"row": "conv_gated_deltanet width={}"},
            "DeltaNet": {"row": "conv_deltanet width={}"},
            "HGRN2": {"row": "conv_hgrn2 width={}"},
            "RetNet": {"row": "conv_retnet width={}"},
            "Mamba-1": {"row": "conv_mamba1 width={}"},
            "Longhorn": {"row": "conv_longhorn width={}"},
            "Hawk": {"row": "conv_hawk width={}"},
        },
        down={width: {"at": width} for width in ("32", "64", "128", "256")},
    ),
    "mqar-memories": Excerpt(
        corner="width",
        every=_WIDTHS,
        across={
            "TTT-MLP": {"row": "conv_ttt_mlp heads=4 width={}"},
            "Titans": {"row": "conv_titans eta_over=target heads=4 inner_norm=true width={}"},
            "Titans without momentum": {"row": "conv_titans_minus eta_over=target heads=4 inner_norm=true width={}"},
            "DLA": {"row": "conv_dla width={}"},
            "OmegaNet": {"row": "conv_omeganet width={}"},
            "SWLA": {"row": "conv_swla width={}"},
            "Yaad": {"row": "conv_yaad beyond=norm width={}"},
            "TTT-Linear": {"row": "conv_ttt_linear heads=4 width={}"},
        },
        down=_FOUR_WIDTHS,
    ),
    "mqar-retentions": Excerpt(
        corner="width",
        every=_WIDTHS,
        across={
            "Moneta": {"row": "conv_moneta width={}"},
            "Memora": {"row": "conv_memora width={}"},
            "Atlas": {"row": "conv_atlas inner_norm=false safety=2 width={}"},
            "Atlas++": {"row": "conv_atlas_pp width={}"},
            "SWDT": {"row": "conv_swdt width={}"},
            "Deep Transformer": {"row": "conv_deep_transformer width={}"},
            "Dot": {"row": "conv_dot heads=4 residual=false safety=4 width={}"},
        },
        down=_FOUR_WIDTHS,
    ),
    "parity": Excerpt(
        corner="",
        every={"records": "parity", "of": "spread"},
        across={f"{length} bits": {"column": f"length {length}"} for length in (40, 64, 128, 256)},
        down={
            "Mesa, decay in (-1, 1)": {"row": "mesa signed_decay=true"},
            "Mesa, in (0, 1)": {"row": "mesa signed_decay=false"},
            "GLA, in (-1, 1)": {"row": "gla signed_decay=true"},
            "GLA, in (0, 1)": {"row": "gla signed_decay=false"},
            "Mamba-2, in (-1, 1)": {"row": "mamba2 signed_decay=true"},
            "Mamba-2, in (0, 1)": {"row": "mamba2 signed_decay=false"},
            "DeltaNet, writes up to 2": {"row": "deltanet beta_max=2"},
            "DeltaNet, up to 1": {"row": "deltanet beta_max=1"},
            "Gated DeltaNet, up to 2": {"row": "gated_deltanet beta_max=2"},
            "Gated DeltaNet, up to 1": {"row": "gated_deltanet beta_max=1"},
        },
    ),
}
