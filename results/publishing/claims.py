"""What the papers claim, and which records decide it: data for `results.judge`."""

from __future__ import annotations

from dataclasses import dataclass

from recallmap.results.publishing.claim_rules import Above, Each, OnAverage, Rises, Rule, Which

LINEAR = ("deltanet", "gated_deltanet", "gla", "linear_attention", "mamba2", "mlstm", "rwkv7", "retnet", "hgrn2")

CLOSE = 0.02  # scores that differ by less count as equal


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`text` as we read the source; `tasks` and `rule` say which records decide it and how; `remark` what we take the reason to
    be, as far as the committed records go."""

    name: str
    text: str
    source: str
    tasks: tuple[str, ...]
    rule: Rule
    remark: str = ""


TABLE_9 = (
    ("in_context_recall", "noisy_in_context_recall"),
    ("fuzzy_in_context_recall",),
    ("memorization",),
    ("selective_copying",),
    ("compression",),
)

ALL_OF_MAD = tuple(task for column in TABLE_9 for task in column)

MESA = Which(has=("mesa",), lacks=("attention", "hawk"))

OTHERS = Which(has=LINEAR, lacks=("attention", "mesa"))

SIGNED = {"signed_decay": (True,)}

UNSIGNED = {"signed_decay": (False,)}

FULL = {"cg_steps": (30,), "tolerance": (None,)}

TRAINED_FULL = {"training.trained_cg_steps": 30}


def _four_blocks_above_none(start: str) -> Rule:
    better = Which(grown=True, dials={"count": (4,), "start": (start,)})
    return Above(better=better, worse=Which(grown=False), but=("expand",))


def _on_mad(better: Which, worse: Which) -> Rule:
    """One is better than another on the average of MAD's columns."""
    return OnAverage(rule=Above(better=better, worse=worse), columns=TABLE_9)


def _beyond_trained(archs: tuple[str, ...], dial: str, *, better: float, worse: float) -> Rule:
    """One value of a dial is better than another on parity of 256 bits."""
    good, bad = (Which(has=archs, dials={dial: (value,)}, at={"length": 256}) for value in (better, worse))
    return Above(better=good, worse=bad, but=(dial,))


CLAIMS = (
    Claim(
        name="parity-sign",
        text="Mesa with a decay in (-1, 1) follows parity beyond the trained length; with one in (0, 1) it does not: at 256 "
        "bits, trained on 40, the signed one is better.",
        source="MesaNet, appendix I, figure 8",
        tasks=("parity",),
        rule=_beyond_trained(("mesa",), "signed_decay", better=True, worse=False),
        remark="The table parity_cpu has three seeds of each, at a smaller size, at four times the trained length; of other "
        "recurrences see the two claims below.",
    ),
    Claim(
        name="parity-writes",
        text="Delta rules whose writes may be twice as strong as what they correct, so that a transition's eigenvalues reach "
        "down to -1, follow parity beyond the trained length: at 256 bits, trained on 40, they are better than those that "
        "write once at most.",
        source="Grazzi et al. 2025, on negative eigenvalues",
        tasks=("parity",),
        rule=_beyond_trained(("deltanet", "gated_deltanet"), "beta_max", better=2, worse=1),
    ),
    Claim(
        name="parity-decays",
        text="Gated linear attention and Mamba-2 with decays in (-1, 1) follow parity beyond the trained length: at 256 bits, "
        "trained on 40, they are better than with decays in (0, 1).",
        source="Grazzi et al. 2025, on negative eigenvalues",
        tasks=("parity",),
        rule=_beyond_trained(("gla", "mamba2"), "signed_decay", better=True, worse=False),
        remark="Every signed seed is above every unsigned one. Of gated linear attention two keep 97 and 100 % of the bits and "
        "one 67 %, too far apart for three to decide.",
    ),
    Claim(
        name="parity-perfect",
        text="Mesa with a decay in (-1, 1) solves parity perfectly at up to 256 bits, trained on 40.",
        source="MesaNet, appendix I, figure 8",
        tasks=("parity",),
        rule=Each(which=Which(has=("mesa",), dials=SIGNED, at={"length": 256}), least=0.99),
        remark="Up to 128 bits it is near perfect, at 256 it loses a tenth. The paper gives neither schedule nor number of "
        "steps.",
    ),
    Claim(
        name="parity-unsigned",
        text="Mesa with a decay in (0, 1) does not solve parity at 256 bits.",
        source="MesaNet, appendix I, figure 8",
        tasks=("parity",),
        rule=Each(which=Which(has=("mesa",), dials=UNSIGNED, at={"length": 256}), most=0.9),
    ),
    Claim(
        name="cg-tolerance",
        text=f"Conjugate gradients stopped at 1e-4 score as 30 fixed steps do (to within {CLOSE:g}).",
        source="MesaNet, sections 5 and M",
        tasks=("mqar",),
        rule=Above(
            better=Which(has=("mesa",), dials={"tolerance": (1e-4,)}),
            worse=Which(has=("mesa",), dials=FULL),
            but=("tolerance",),
            margin=CLOSE,
        ),
    ),
    Claim(
        name="cg-steps-taken",
        text="Stopped at 1e-4 they take about 9 steps on average (here: 6 to 12).",
        source="MesaNet, sections 5 and M",
        tasks=("mqar",),
        rule=Each(which=Which(has=("mesa",), dials={"tolerance": (1e-4,)}), score="cg_steps", least=6, most=12),
        remark="Here 32 keys fill 32 channels, so that the matrix to be solved for is as ill-conditioned as it gets; the "
        "paper counts steps of a language model.",
    ),
    Claim(
        name="cg-too-few",
        text="Of a model trained with 30 fixed steps the loss rises where fewer than 10 are taken.",
        source="MesaNet, sections 5 and M",
        tasks=("mqar",),
        rule=Above(
            better=Which(has=("mesa",), dials=FULL, at=TRAINED_FULL),
            worse=Which(has=("mesa",), dials={"cg_steps": tuple(range(10)), "tolerance": (None,)}, at=TRAINED_FULL),
            but=("cg_steps",),
            score="loss",
        ),
        remark="Models of two blocks that recall 32 pairs: there is little left to lose from the fifth step on, and of 8 steps "
        "the loss is higher by two percent at most.",
    ),
    Claim(
        name="statex-expanded",
        text="A model whose state was expanded in four blocks recalls more than the same model trained on as it was, at equal "
        "data.",
        source="StateX, figure 3",
        tasks=("mqar", "needle"),
        rule=_four_blocks_above_none("reinitialise"),
        remark="A block that starts anew answers nothing at first. After 1,500 steps it has mostly not learned again (and each "
        "variant had learned its first phase by itself on the GPU, not the same to its last digit: some of the spread is "
        "that). After 6,000 it has, and size decides: where the plain state is too small, Mamba-2 of 64 pairs, every "
        "expanded seed answers nearly everything and the plain ones do not, but by so different amounts that six of them "
        "do not decide; where it is large enough, GLA, all are at the ceiling. The paper trains on with billions of tokens.",
    ),
    Claim(
        name="statex-inherited",
        text="A model whose state was expanded in four blocks that inherit their weights recalls more than the same model "
        "trained on as it was, at equal data.",
        source="StateX, its ablation of the start",
        tasks=("mqar", "needle"),
        rule=_four_blocks_above_none("inherit"),
    ),
    Claim(
        name="statex-reinitialised",
        text="Expanded blocks that start anew beat those that inherit their weights.",
        source="StateX, ablation of the start",
        tasks=("mqar", "needle"),
        rule=Above(
            better=Which(dials={"start": ("reinitialise",)}),
            worse=Which(dials={"start": ("inherit",)}),
            but=("start",),
        ),
        remark="After 1,500 steps of post-training what is inherited is ahead everywhere, by more than seeds spread on one "
        "setting. After 6,000 both are at the ceiling, a state only twice as wide as well: what starts anew catches up, and "
        "does not pass.",
    ),
    Claim(
        name="statex-four-blocks",
        text=f"To expand four blocks is enough: no worse than all of them (to within {CLOSE:g}).",
        source="StateX, table 5 and its ablation of the number of blocks",
        tasks=("mqar", "needle"),
        rule=Above(
            better=Which(dials={"count": (4,), "start": ("reinitialise",)}),
            worse=Which(dials={"count": ("all",), "start": ("reinitialise",)}),
            but=("count",),
            margin=CLOSE,
            no_worse=True,
        ),
    ),
    Claim(
        name="statex-one-wide-head",
        text="From scratch, with equal key channels, one wide head recalls more than many narrow ones.",
        source="StateX, table 5",
        tasks=("mqar",),
        rule=Above(
            better=Which(archs=("gla_from_scratch",), dials={"heads": (1,)}),
            worse=Which(archs=("gla_from_scratch",), dials={"heads": (2, 4, 8)}),
            but=("heads", "key_dim", "value_dim"),
        ),
        remark="Two heads do as one; at four and eight, seeds lie too far apart for three of them to decide.",
    ),
    Claim(
        name="atlas-window",
        text="A wider window c over which a memory learns raises what it recalls of many pairs.",
        source="ATLAS, the Omega rule",
        tasks=("mqar",),
        rule=Rises(dial="window", which=Which(lacks=("attention",))),
        remark="Recall needs what was told long ago; a window of 16 spends the memory's steps on the last tokens again. "
        "Of six comparisons one decides, and barely; two seeds had decided two others, which five do not. The memory is small, "
        "the sequence 64 tokens: the paper's gains are of language models.",
    ),
    Claim(
        name="atlas-degree",
        text="A higher polynomial degree p of the keys raises what a memory recalls of many pairs.",
        source="ATLAS, propositions on capacity",
        tasks=("mqar",),
        rule=Rises(dial="degree"),
    ),
    Claim(
        name="mqar-equal-state",
        text="At equal state (to within 10 %), memories that correct their errors (delta rules, Mesa) recall more than linear "
        "attention.",
        source="DeltaNet, Gated DeltaNet and MesaNet, on associative recall",
        tasks=("mqar",),
        rule=Above(
            better=Which(has=("deltanet", "gated_deltanet", "mesa"), lacks=("attention",)),
            worse=Which(has=("linear_attention",), lacks=("attention",)),
            same_state=0.1,
        ),
        remark="They do in a small memory, and by Zoology's recipe, of which a quarter was trained, up to the 64 pairs that "
        "were trained; at 256 pairs, in sequences four times as long, delta rules recall less, and of Gated DeltaNet that is "
        "decided. Trained on one number of pairs (one seed, undecided), what has an equal state are delta rules of 16 "
        "channels, which have not left the plateau.",
    ),
    Claim(
        name="mad-mesa-first",
        text="On the average of MAD, Mesa scores above every other linear mixer.",
        source="MesaNet, table 9",
        tasks=ALL_OF_MAD,
        rule=_on_mad(MESA, OTHERS),
        remark="Fuzzy recall makes most of the difference. From weights that begin large (fan_in, in mad) it is decided over "
        "three seeds; from small ones (normal, in mad_normal) Mesa is above all others, too, of Gated DeltaNet by 0.003, but "
        "one seed decides nothing. One setting of each task, the first, at a quarter of the published epochs (memorization at "
        "all): of the other 60 settings those of memorization alone are tried, where small weights bring the published order "
        "and large ones do not.",
    ),
    Claim(
        name="mad-atlas-first",
        text="On the average of MAD, Atlas scores above OmegaNet, Titans, Gated DeltaNet and softmax attention.",
        source="ATLAS, table on MAD",
        tasks=ALL_OF_MAD,
        rule=_on_mad(
            Which(archs=("atlas",)),
            Which(archs=("omeganet", "titans", "gated_deltanet_mesanet", "attention", "transformer")),
        ),
        remark="On all but fuzzy recall and compression every one of them is at the ceiling. Attention answers most of fuzzy "
        "recall, where the paper has it behind Atlas; there all memories overfit. Beside Titans, of two seeds, the common "
        "variance is mostly that of Atlas. The first setting of each task, at a quarter of MesaNet's epochs (memorization at "
        "all).",
    ),
    Claim(
        name="mad-omega-rule",
        text="On the average of MAD, OmegaNet, which learns over a window, scores above Titans, which learns from the last "
        "token.",
        source="ATLAS, table on MAD",
        tasks=ALL_OF_MAD,
        rule=_on_mad(Which(archs=("omeganet",)), Which(archs=("titans",))),
        remark="Titans of safety=1 learns inside at the rate at which 22 of its 48 trials diverged; safety=4 is four times "
        "slower.",
    ),
    Claim(
        name="mad-memories-attention",
        text="On the average of MAD, Titans and OmegaNet score above softmax attention.",
        source="ATLAS, table on MAD",
        tasks=ALL_OF_MAD,
        rule=_on_mad(Which(archs=("titans", "omeganet")), Which(archs=("attention", "transformer"))),
        remark="It is attention that is better here than in the paper, by fuzzy recall: 90 % of the first setting, where the "
        "mean over all settings is 48 there. Harder ones, where a memory may win, are not tried.",
    ),
    Claim(
        name="regbench-mesa-first",
        text="On RegBench, Mesa scores above every other linear mixer.",
        source="MesaNet, appendix K, figure 9",
        tasks=("regbench",),
        rule=Above(better=MESA, worse=OTHERS),
        remark="2,500 prompts and two blocks of width 128, at the published rates; the paper does not say which size of the "
        "data it trained on.",
    ),
    Claim(
        name="regbench-as-attention",
        text=f"On RegBench, Mesa is on par with softmax attention (to within {CLOSE:g}).",
        source="MesaNet, appendix K, figure 9",
        tasks=("regbench",),
        rule=Above(better=MESA, worse=Which(archs=("attention", "transformer")), margin=CLOSE),
        remark="Mesa is not on par but far ahead. Of 2,500 prompts all know by heart what they were trained on long before the "
        "200 epochs are over: attention's validation falls from the eighth epoch on (from 54 to 38 %), that of the others from "
        "the 16th to the 32nd at their best rates; what is compared is what each found before. Deeper transformers find the "
        "languages (Akyürek et al. 2024), and two blocks those of a smaller size, of which they see fresh prompts.",
    ),
    Claim(
        name="hybrid-recall",
        text="Gated DeltaNet with sliding windows in turn (H1) recalls more than Gated DeltaNet alone.",
        source="Gated DeltaNet, hybrid models",
        tasks=("mqar", "needle"),
        rule=Above(better=Which(archs=("gated_deltanet_h1",)), worse=Which(archs=("gated_deltanet",))),
        remark="On needles, windows of 64 tokens have nothing to add at these lengths, and half of the blocks are theirs. On "
        "the third level neither learned anything.",
    ),
    Claim(
        name="hybrid-atlas",
        text="Atlas as a gate beside a window (MAG) recalls more than Atlas alone.",
        source="ATLAS, combinations with attention",
        tasks=("mqar", "needle", "in_context_recall"),
        rule=Above(better=Which(archs=("atlas_mag", "MAG")), worse=Which(archs=("atlas",))),
        remark="One narrow block, 600 steps on a CPU, ten seeds: some have learned it by then, with a window and without.",
    ),
    Claim(
        name="atlas-parts",
        text="Every part of Atlas helps: it recalls more than with a memory of one matrix, a window of one token, gradient "
        "descent for Muon, or keys without polynomial features.",
        source="ATLAS, ablation (there of language models)",
        tasks=("in_context_recall",),
        rule=Above(
            better=Which(archs=("atlas",)),
            worse=Which(archs=("linear memory", "window of 1", "without Muon", "without polynomial")),
        ),
        remark="One narrow block, a head of eight channels, 600 steps on a CPU, three rates, ten seeds of the best. Muon "
        "helps. A memory of one matrix learns the task on every seed, the deep one on six of ten in that time; without the "
        "skip inside, which ATLAS prints, it does so, too (99.5 ±0.5).",
    ),
    Claim(
        name="needle-delta",
        text="Without distraction (level 1) at twice the trained length, the delta rule finds more needles than Mamba-2.",
        source="Gated DeltaNet, table 2, S-NIAH-1",
        tasks=("needle",),
        rule=Above(
            better=Which(archs=("deltanet", "gated_deltanet"), at={"level": 1, "length": 1024}),
            worse=Which(archs=("mamba2",), at={"level": 1, "length": 1024}),
        ),
        remark="All of them find every needle: small models on a small task do not tell them apart.",
    ),
    Claim(
        name="needle-gate",
        text="In prose (level 2) a gate helps: Gated DeltaNet finds more needles than DeltaNet.",
        source="Gated DeltaNet, table 2, S-NIAH-2",
        tasks=("needle",),
        rule=Above(
            better=Which(archs=("gated_deltanet",), at={"level": 2}), worse=Which(archs=("deltanet",), at={"level": 2})
        ),
        remark="Trained for 10,000 steps, both find all needles up to four times the trained length; at eight times the gate "
        "forgets some. What is decided against it is of the 1,500 steps of a CPU's budget, within which two of its "
        "three seeds learned nothing at the better of two rates, nor two of three whose gate forgets less at first. "
        "The haystack of this task is no language in which there is something to clear away.",
    ),
)
