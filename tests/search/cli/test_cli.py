"""The verbs as their user meets them: what they print, where they complain, how they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.engines import ray_workers

ROOT = Path(__file__).parents[3]
STUDY = """\
# Two rates, two seeds.
name: story
trial:
  task: {kind: mqar, vocab: 32, length: 16, pairs: 2}
  arch: {name: tiny, width: 16, stack: [{kind: block, mixer: {kind: linear_attention, heads: 2}}]}
  training: {steps: 4, batch: 8, evaluations: 1}
  data: {validation: 16, test: 16}
space: {kind: grid, axes: {trial.training.lr: [1e-3, 1e-2], trial.seed: [0, 1]}}
budgets:
  one: {space.axes.trial.seed: [0], space.axes.trial.training.lr: [1e-3]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one works, with a study in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "story.yaml").write_text(STUDY)
    return tmp_path


def call(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def out(*words: str) -> str:
    code, text, errors = call(*words)
    assert (code, errors) == (0, "")
    return text


# Looking. -----------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "pandas", "plotly", "pydantic", "yaml", "ray", "optuna", "sqlite3", "rich.table")
    program = (
        "import sys\nsys.argv = ['recallmap', '--help']\nfrom recallmap.search.cli import main\n"
        f"try:\n    main()\nexcept SystemExit:\n    print([m for m in {heavy!r} if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Train what the ledger lacks" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


def test_tasks_are_looked_at_without_torch() -> None:
    program = (
        "import sys\nfrom search import codec\ncodec.read_task('mqar')\n"
        "print([m for m in ('torch', 'pandas') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("tasks", ["mqar", "pairs 4", "fillers true", "ceiling"]),
        ("mixers", ["gated_deltanet", "S_t = a_t", "Yang et al. 2025"]),
        ("archs", ["gated_deltanet_h1", "gated_deltanet + swiglu, attention + swiglu", "state bytes"]),
        ("differences", ["gla_mesanet", "mamba2_shared_qk", "flash-linear-attention's"]),
        ("suites", ["mad", "paper (66)"]),
        ("studies", ["study", "budgets"]),
    ],
)
def test_list_names_what_there_is(what: str, said: list[str]) -> None:
    text = " ".join(out("list", what).split())
    assert all(words in text for words in said)


def test_list_names_every_member_of_the_unions() -> None:
    from recallmap.arch.mixers import Mixer
    from recallmap.search.documents.type_hints import kinds_of
    from recallmap.synth.tasks import Task

    for what, union in (("tasks", Task), ("mixers", Mixer)):
        first = {line.split()[0] for line in out("list", what).splitlines() if line.split()}
        assert set(kinds_of(union)) <= first


def test_a_preview_marks_what_is_asked_and_where_it_was_told() -> None:
    lines = out("preview", "mqar", "length=16", "vocab=32", "pairs=2", "--count", "1").splitlines()
    rows = {line[:6].strip(): line[6:].split() for line in lines if line[:4] in ("at  ", "in  ", "out ", "from")}
    assert len(rows["at"]) == len(rows["in"]) == len(rows["out"]) == len(rows["from"]) == 16
    asked = [i for i, answer in enumerate(rows["out"]) if answer != "·"]
    assert len(asked) == 2
    for position in asked:
        told = int(rows["from"][position])
        assert rows["in"][told] == rows["out"][position]
        assert rows["in"][told - 1] == rows["in"][position]


def test_a_preview_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = out("preview", "mqar", "length=64", "--count", "1").splitlines()
    assert all(len(line) <= 60 for line in lines if line[:4] in ("at  ", "in  ", "out ", "from"))


def test_a_preview_tells_of_long_stretches_and_does_not_show_them() -> None:
    text = out("preview", "needle", "length=512", "--count", "1")
    assert len(text.splitlines()) < 60
    assert "no question, no answer" in text


def test_every_task_can_be_previewed() -> None:
    from recallmap.search.documents.type_hints import kinds_of
    from recallmap.synth.tasks import Task

    for kind in kinds_of(Task):
        assert kind in out("preview", kind, "--count", "1").splitlines()[0]


def test_cost_says_what_the_record_will_say() -> None:
    from recallmap.arch.cost import cost

    price = cost(codec.read_arch("mesa"), vocab=16, length=32)
    text = out("cost", "mesa", "--vocab", "16", "--length", "32")
    assert f"{price.parameters:,}" in text
    assert f"{price.state_bytes:,}" in text


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("cycle_navigation", "ok: task cycle_navigation: 40 positions"),
        ("mqar", "task mqar: 64 positions, 8192 ids"),
        ("mqar", "suite mqar\n  tier"),
        ("mesa", "ok: arch mesa: width 128, 2 x (mesa + swiglu)"),
        ("mad", "tier paper: 66 settings"),
        ("story.yaml", "ok: study story: 4 trials (1 task setting, 1 architecture, 2 seeds)\n  budget one: 1 trial ("),
    ],
)
def test_check_tells_what_a_document_holds(source: str, said: str) -> None:
    assert said in out("check", source)


@pytest.mark.parametrize("name", sorted({name for what in ("arch", "study", "suite") for name in codec.builtin(what)}))
def test_every_document_of_the_package_is_right_and_no_value_of_a_base_is_dropped(name: str) -> None:
    """Studies under every budget."""
    said = out("check", name)
    assert said.startswith("ok: ")
    assert "no trial has it" not in said


@pytest.mark.parametrize("name", codec.builtin("published"))
def test_every_published_table_of_the_package_is_right(name: str) -> None:
    codec.read_published(name)


@pytest.mark.parametrize("what", ["task", "arch", "study"])
def test_check_prints_a_schema_for_editors(what: str) -> None:
    found = json.loads(out("check", "--schema", what))
    assert found["$schema"].startswith("https://json-schema.org/")
    for name in ("Mqar",) if what == "task" else ("BackboneSpec", "Attention"):
        assert found["$defs"][name]["additionalProperties"] is False


# Training and what comes after. ----------------------------------------------------------------------


def test_a_study_from_plan_to_table(folder: Path) -> None:
    plan = out("run", "story.yaml", "--dry-run")
    assert "4 trials, 0 known in runs/story.sqlite, 4 to train in 1 cohort" in plan
    assert not (folder / "runs").exists()

    text = out("run", "story.yaml")
    assert text.splitlines()[0] == "4 trials, 4 to train in 1 cohort"
    assert text.count("tiny  mqar vocab=32 length=16 pairs=2  lr ") == 4
    assert "0 known, 4 done, 0 failed, in runs/story.sqlite\nnext: recallmap table story.yaml\n" in text

    assert "4 trials, 4 known, 0 to train" in out("run", "story.yaml")
    assert "| tiny | 576 B | 2 |" in out("table", "story.yaml")
    assert out("table", "runs/story.sqlite") == out("table", "story.yaml")
    assert "| tiny | 576 B | 1 |" in out("table", "story.yaml", "--set", "budget=one")
    assert out("table", "story.yaml", "--format", "csv").count("\n") > 1
    assert "mesanet" not in out("table", "story.yaml", "--beside", "mesanet")

    assert out("export", "runs/story.sqlite", "-o", "all.jsonl") == "all.jsonl: 4 records\n"
    assert out("table", "all.jsonl") == out("table", "story.yaml")
    assert out("dashboard", "story.yaml", "-o", "page.html") == "page.html: 4 records\n"
    assert "<title>story</title>" in (folder / "page.html").read_text()


def test_what_a_part_would_train_is_told_of_it_alone() -> None:
    words = ("run", "story.yaml", "--cohort-size", "1", "--part", "2/3")
    assert out(*words, "--dry-run").endswith("\n1 trial, 0 known in runs/story.sqlite, 1 to train in 1 cohort\n")
    assert out(*words).startswith("1 trial, 1 to train in 1 cohort\n")


def test_options_keep_their_old_names(folder: Path) -> None:
    new = out("run", "story.yaml", "--dry-run", "--cohort-size", "2")
    assert new.endswith("\n4 trials, 0 known in runs/story.sqlite, 4 to train in 2 cohorts\n")
    assert out("run", "story.yaml", "--dry-run", "--most", "2") == new
    assert out("run", "story.yaml", "--dry-run", "--most", "2", "--cohort-size", "2") == new
    shown = out("run", "--help")
    assert "--cohort-size" in shown
    assert "--cohorts-per-gpu" in shown
    assert "--most" not in shown
    assert "--abreast" not in shown
    for new_name, old_name in (("--cohort-size", "--most"), ("--cohorts-per-gpu", "--abreast")):
        code, _, said = call("run", "story.yaml", new_name, "2", old_name, "3")
        assert code == 2
        assert said == f"{new_name} and {old_name} are one option and must agree, got 2 and 3; leave {old_name} out\n"


@pytest.mark.parametrize("name", ["--cohorts-per-gpu", "--abreast"])
def test_the_inline_engine_trains_one_cohort_at_a_time_on_a_cpu(name: str) -> None:
    code, _, said = call("run", "story.yaml", name, "2")
    assert code == 2
    assert said == (
        "--cohorts-per-gpu must be 1 on a CPU, where --engine inline trains one cohort after another; got 2; use --engine ray, "
        "or several calls with --part\n"
    )


@pytest.mark.parametrize("name", ["--cohorts-per-gpu", "--abreast"])
def test_ray_is_given_the_cohorts_per_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    given: list[int] = []

    def run(*args: object, cohorts_per_gpu: int, **rest: object) -> None:
        given.append(cohorts_per_gpu)
        raise ConnectionError("stop here")

    monkeypatch.setattr(ray_workers, "run", run)
    call("run", "story.yaml", "--engine", "ray", name, "4")
    assert given == [4]


def test_what_won_gets_further_seeds() -> None:
    words = ("run", "story.yaml", "--set", "space.axes.trial.seed=[0]", "--seeds", "3")
    plan = out(*words, "--dry-run").splitlines()
    assert plan[-2].startswith("2 trials, 0 known in runs/story.sqlite, 2 to train in 1 cohort")
    assert plan[-1] == "then at most 2 further trials: seeds 0..2 of the best settings"
    text = out(*words)
    assert text.splitlines()[0] == "2 trials, 2 to train in 1 cohort"
    assert "\n2 further trials: seeds 0..2 of the best settings\n" in text
    assert text.endswith("0 known, 4 done, 0 failed, in runs/story.sqlite\nnext: recallmap table runs/story.sqlite\n")
    assert "| tiny | 576 B | 3 |" in out("table", "runs/story.sqlite")
    assert "4 trials, 4 known, 0 to train" in out(*words)
    assert out(*words, "--dry-run").endswith("then at most 0 further trials: seeds 0..2 of the best settings\n")


def test_what_comes_next_repeats_what_was_said() -> None:
    text = out("run", "story.yaml", "--set", "budget=one", "--ledger", "mine.sqlite")
    assert text.endswith("next: recallmap table story.yaml --ledger mine.sqlite --set budget=one\n")


def test_a_study_with_failed_trials_exits_1() -> None:
    code, text, _ = call(
        "run", "story.yaml", "--set", "space.axes.trial.training.lr=[1e30]", "--set", "trial.training.steps=20"
    )
    assert code == 1
    assert "FAILED  tiny" in text
    assert "2 failed" in text


def test_a_search_of_which_nothing_may_be_trained_exits_1(folder: Path) -> None:
    space = "{kind: random, points: 2, dials: {trial.training.lr: {float: [1e-4, 1e-2]}}}"
    trial = STUDY[: STUDY.index("space:")]
    (folder / "search.yaml").write_text(f"{trial}constraints: {{parameters: 1}}\nspace: {space}\n")
    assert call("run", "search.yaml")[0] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_who_is_stopped_keeps_what_is_done_and_says_how_to_go_on(folder: Path, number: signal.Signals) -> None:
    """By Ctrl-C, by who asks the process to end, by a terminal that is closed."""
    words = ["run", "story.yaml", "--set", "trial.training.steps=1000000"]
    program = "from recallmap.search.cli import main; main()"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "4 trials, 4 to train in 1 cohort\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    begun = "; the cohort under way is not saved and begins anew"  # where its training had begun when the signal came
    stopped = "stopped; 0 of 4 trials are in runs/story.sqlite"
    assert f"{stopped}. To resume:" in errors or f"{stopped}{begun}. To resume:" in errors
    assert errors.rstrip().endswith("run story.yaml --set trial.training.steps=1000000")
    assert "Traceback" not in errors


def test_a_closed_pipe_is_no_news(folder: Path) -> None:
    program = "from recallmap.search.cli import main; main()"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, "check", "--schema", "task"]
    with subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""


# Complaints. -----------------------------------------------------------------------------------------

COMPLAINTS = {
    "a study that is not there": (("run", "nosuch"), "nosuch: no built-in study and no file"),
    "a file that is not there": (("run", "nosuch.yaml"), "nosuch.yaml: no such file"),
    "a slip in --set": (
        ("run", "story.yaml", "--set", "trial.sed=1"),
        "--set: trial.sed: unknown key, expected task, arch",
    ),
    "a budget that is not there": (
        ("run", "story.yaml", "--set", "budget=two"),
        "--set: budget: no budget 'two', expected one",
    ),
    "an engine that is not there": (
        ("run", "story.yaml", "--engine", "rya"),
        "--engine: no engine 'rya', expected inline",
    ),
    "an address without a cluster": (
        ("run", "story.yaml", "--address", "a"),
        "--address: the inline engine runs in this process",
    ),
    "a device that is not there": (
        ("run", "story.yaml", "--device", "gpu"),
        "--device: got gpu, which cannot be used here",
    ),
    "further seeds of a part": (
        ("run", "story.yaml", "--seeds", "3", "--part", "1/2"),
        "--seeds: only a whole grid has a winner; merge its parts, then use --seeds without --part",
    ),
    "further seeds of a search": (("run", "hybrid_search", "--seeds", "3"), "set space.over.trial.seed instead"),
    "a ledger that is a folder": (("run", "story.yaml", "--ledger", "."), ". is a folder, a ledger is a file"),
    "a ledger that is a file of records": (
        ("run", "story.yaml", "--ledger", "all.jsonl"),
        "--ledger: got all.jsonl, a file of records, expected a ledger; make one with: recallmap merge all.jsonl -o "
        "NAME.sqlite",
    ),
    "no ledger yet": (("table", "story.yaml"), "there is no ledger at runs/story.sqlite"),
    "a file that is no ledger": (
        ("export", "story.yaml", "--ledger", "story.yaml", "-o", "a.csv"),
        "story.yaml is not an SQLite file",
    ),
    "a folder without records": (
        ("table", "."),
        ".: this folder holds no records, expected files in .sqlite, .db or .jsonl",
    ),
    "a folder without a ledger": (
        ("merge", ".", "-o", "a.sqlite"),
        ".: this folder holds no records, expected files in .sqlite, .db or .jsonl",
    ),
    "a change of records": (
        ("table", "a.jsonl", "--set", "trial.seed=1"),
        "--set: got it with a.jsonl, which is records, expected a study; leave it out, or choose with --only",
    ),
    "rates beyond the grid of a search": (
        ("extend", "hybrid_search", "--set", "budget=smoke"),
        "hybrid_search is a search, which proposes learning rates by itself: widen its space.within instead",
    ),
    "a step in a precision that none trains in": (
        ("bench", "step", "--dtype", "float64"),
        "bench step: a step trains in float32 or bfloat16, got float64",
    ),
    "a part of a bench of one op": (
        ("bench", "attention", "--part", "1/2"),
        "bench attention: got --part 1/2, which is for bench kernels, growth and cold; leave it out",
    ),
    "some kinds of a bench of one op": (
        ("bench", "attention", "--only", "delta"),
        "bench attention: got --only delta, which is for bench kernels, growth and cold; leave it out",
    ),
    "a first call without a GPU": (
        ("bench", "cold", "--device", "cpu"),
        "bench cold: a first call compiles kernels for a GPU, got device cpu",
    ),
    "a kind of kernels that is not there": (
        ("bench", "kernels", "--only", "delta/haed"),
        "bench kernels: only: got 'delta/haed', expected one of add_norm, add_norm/plain, attention, attention/fading,",
    ),
    "a bench that is not there": (("bench", "profle"), "(did you mean 'profile'?)"),
    "a bench of an op that is not there": (
        ("bench", "gated_liner"),
        "bench: got 'gated_liner', expected one of add_norm, attention,",
    ),
    "an unknown source of figures": (("table", "story.yaml", "--beside", "mesanett"), "(did you mean 'mesanet'?)"),
    "an architecture that is not there": (("cost", "mesaa"), "(did you mean 'mesa'?)"),
    "a study where an arch is wanted": (
        ("cost", "story.yaml"),
        "story.yaml:3:1: got the key 'trial' of a study, expected an arch",
    ),
    "a task that is not there": (("preview", "mqra"), "task: unknown kind 'mqra'"),
    "a dial that is not there": (("preview", "mqar", "lenght=3"), "option: lenght: unknown key"),
    "a dial without a value": (
        ("preview", "mqar", "length"),
        "option: got 'length', expected path=value such as length=32",
    ),
    "a dial out of range": (("preview", "mqar", "pairs=0"), "option: pairs: pairs must be at least 1, got 0"),
    "nothing to check": (
        ("check",),
        "check: got neither a file nor --schema, expected a FILE, or --schema task|arch|study",
    ),
    "nothing of that name": (
        ("check", "mesaa"),
        "no file, and no built-in study, arch, suite or task (did you mean 'mesa'?)",
    ),
    "a task of one's own without its file": (
        ("preview", "fade"),
        ", or one of your own, by --use FILE or uses: [FILE]",
    ),
    "a mixer where an architecture is wanted": (
        ("probe", "gka"),
        "gka: is a mixer, expected an architecture: write one around it, such as {name: gka, stack: [{kind: block, mixer: "
        "gka}]}",
    ),
    "a key that lies deeper": (
        ("run", "story.yaml", "--set", "steps=3"),
        "--set: steps: unknown key, expected name, description, trial, space, goals, constraints, budgets, budget, only, "
        "extend, race, uses (did you mean 'trial.training.steps'?)",
    ),
    "a name longer than names are": (("check", "a" * 5000), "no file, and no built-in study"),
}


@pytest.mark.parametrize("case", COMPLAINTS)
def test_bad_input_is_said_on_stderr_and_exits_2(case: str, folder: Path) -> None:
    words, said = COMPLAINTS[case]
    code, text, errors = call(*words)
    assert (code, text) == (2, "")
    assert said in errors
    assert "Traceback" not in errors
    assert not (folder / "runs").exists()


def test_all_faults_of_a_file_come_at_once(folder: Path) -> None:
    (folder / "bad.yaml").write_text(STUDY.replace("steps: 4", "stps: 4").replace("width: 16", "width: no"))
    code, _, errors = call("check", "bad.yaml")
    assert code == 2
    assert [line.split(" ")[0] for line in errors.splitlines()] == ["bad.yaml:5:29:", "bad.yaml:6:14:"]


FILES = {  # what are no documents, and what is said of them
    "held.jsonl": "held.jsonl: holds records (recallmap table held.jsonl shows them), expected ",
    "held.sqlite": "held.sqlite: holds records (recallmap table held.sqlite shows them), expected ",
    "fade.py": "fade.py: is a Python file (recallmap verify fade.py tries what it defines, and --use fade.py names it to any "
    "command), expected ",
}


@pytest.mark.parametrize("verb", ["check", "run", "cost", "preview"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_document_is_told_with_the_verb_for_it(name: str, verb: str, folder: Path) -> None:
    (folder / name).write_bytes(b"{}" * 2**18)
    code, text, errors = call(verb, name)
    assert (code, text) == (2, "")
    assert errors.startswith(FILES[name])
    assert errors.endswith(" in YAML\n")


def test_a_document_that_is_nothing_known(folder: Path) -> None:
    (folder / "odd.yaml").write_text("a: 1\n")
    code, _, errors = call("check", "odd.yaml")
    assert code == 2
    assert errors.startswith(
        "odd.yaml:1:1: no key shows the sort of this document, expected 'trial' (a study), 'stack' (an arch)"
    )


@pytest.mark.parametrize(
    ("study", "part", "message"),
    [
        ("demo", "5/4", "I from 1 to N"),
        ("demo", "x", "I from 1 to N"),
        ("hybrid_search", "1/2", "a search cannot be split into parts"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused_and_nothing_is_written(
    study: str, part: str, message: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["run", study, "--part", part, "--ledger", str(tmp_path / "x.sqlite")])
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.glob("x.sqlite*"))
