"""The guides of docs/ and the README: their commands run, their files are read, their links lead somewhere.

A block ```sh is run line by line in an empty folder, where the files of the guide lie. Blocks with a further word (slow,
cluster, mixer) need minutes, machines or a changed checkout: their lines are parsed alone. A line <!-- file: NAME --> above a
block says that the block is that file.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.cli.app import app

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *GUIDES,
    *(ROOT / f"{p}/README.md" for p in ("synth", "arch", "search", "results")),
]
DOCUMENTS.append(ROOT / "arch/kernels/README.md")
MADE = ROOT / "results/map.html"  # by `make map`; tests/results/page/test_map.py follows the links into it
ELSEWHERE = ("kubectl", "ray", "sbatch")  # programs of a cluster
_BLOCK = re.compile(r"(?:^<!-- file: (?P<file>\S+) -->\n\n)?^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: the word behind its fence, its text, and the file that it is, or ""."""

    info: str
    text: str
    file: str

    def lines(self) -> Iterator[list[str]]:
        """Its commands, word by word, without comments."""
        return (words for line in self.text.splitlines() if (words := shlex.split(line, comments=True)))


def blocks(path: Path) -> list[Block]:
    found = _BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [Block(m["info"], m["text"], m["file"] or "") for m in found]


def lay_down(block: Block, folder: Path) -> None:
    """Write the file that a block is, where it does not belong into a checkout."""
    if block.file.endswith((".yaml", ".py")) and "/" not in block.file:
        (folder / block.file).write_text(block.text, encoding="utf-8")


def type_in(block: Block) -> None:
    """Run the commands of a block, all of which must succeed."""
    for program, *words in block.lines():
        assert program == "recallmap"
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{shlex.join(words)}: {result.output}{result.exception!r}"


def parsed(words: list[str]) -> None:
    """Raises UsageError on a command, an option or a value that recallmap does not have; runs nothing."""
    group = typer.main.get_command(app)
    with group.make_context("recallmap", list(words), resilient_parsing=False) as context:
        name, command, rest = group.resolve_command(context, list(words))  # type: ignore[attr-defined]
        command.make_context(name, rest, parent=context).close()


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_the_commands_of_a_guide_run_in_an_empty_folder(
    guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    for block in blocks(guide):
        lay_down(block, tmp_path)
        if block.info == "sh":
            type_in(block)


@pytest.mark.slow
def test_the_timed_walk_puts_a_new_mixer_on_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = blocks(ROOT / "docs/bring-your-own-mixer.md")
    for block in guide:
        lay_down(block, tmp_path)
    (walk,) = (block for block in guide if block.info == "sh slow" and "gate.yaml" in block.text)
    type_in(walk)
    assert (tmp_path / "gate.html").is_file()
    with Ledger.open(tmp_path / "runs/gate.sqlite") as ledger:
        best = {
            name: max(r.scores["accuracy"] for r in ledger.all() if r.arch == name)
            for name in ("mine", "delta", "mesa_2")
        }
    assert min(best.values()) > 0.95


@pytest.mark.parametrize(
    "document", [ROOT / "README.md", ROOT / "search/README.md", *GUIDES], ids=lambda path: path.stem
)
def test_a_command_that_is_not_run_has_the_options_that_there_are(document: Path) -> None:
    for block in blocks(document):
        for program, *words in block.lines() if block.info.split(" ")[0] == "sh" else ():
            if program == "recallmap":
                parsed(words)
            elif program == "make":
                assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
            elif program == "pytest":
                own = {one.file for one in blocks(document)}
                assert all(word in own or (ROOT / word).exists() for word in words if word.startswith("tests/"))
            else:
                assert program in ELSEWHERE
                assert all((ROOT / word).is_file() for word in words if word.startswith("search/cluster/"))
                for word in words:
                    if ".venv/bin/recallmap " in word:
                        parsed(shlex.split(word.partition(".venv/bin/recallmap ")[2]))


@pytest.mark.parametrize(
    ("document", "name"), [("README.md", "recall_by_state"), ("search/README.md", "copying_by_state")]
)
def test_the_study_of_a_readme_is_one(document: str, name: str, tmp_path: Path) -> None:
    (study,) = (block.text for block in blocks(ROOT / document) if block.info == "yaml")
    (tmp_path / "study.yaml").write_text(study, encoding="utf-8")
    result = CliRunner().invoke(app, ["check", str(tmp_path / "study.yaml")])
    assert (result.exit_code, result.output.startswith(f"ok: study {name}: ")) == (0, True)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)
    inside = [(document.parent / link).resolve() for link in links if "://" not in link]
    assert [path for path in inside if not path.exists() and path != MADE] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8_000
    assert (ROOT / "docs/page.png").stat().st_size <= 200_000


def test_the_mixer_of_its_guide_keeps_its_story_and_is_one_that_a_union_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {block.file: block.text for block in blocks(ROOT / "docs/bring-your-own-mixer.md") if block.info == "python"}
    mixer = loaded("arch/mixers/leaky.py", own["my_leaky.py"], monkeypatch)
    story = loaded(path := "tests/arch/mixers/test_leaky.py", own[path], monkeypatch)
    (told,) = (name for name in vars(story) if name.startswith("test_"))
    vars(story)[told]()
    spec = mixer.Leaky(keep=0.95)
    assert codec.plain(spec) == {"kind": "leaky", "keep": 0.95}
    assert spec.state_size(64, 128).total == 64
    with pytest.raises(ValueError, match="keep must lie in"):
        mixer.Leaky(keep=1.0)


def test_the_python_of_its_guide_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    text = "\n".join(block.text for block in blocks(ROOT / "docs/python.md") if block.info == "python")
    exec(compile(text, "docs/python.md", "exec"), vars(page))
    assert (tmp_path / "front.html").is_file()
    assert {record.status for record in [*vars(page)["records"], *vars(page)["mine"]]} == {"done"}


def loaded(path: str, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a block would be at its path in the checkout."""
    prefix = "recallmap." if importlib.util.find_spec("recallmap") else ""
    name = prefix + path.removesuffix(".py").replace("/", ".")
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text.replace("recallmap.arch", f"{prefix}arch"), path, "exec"), vars(module))
    return module
