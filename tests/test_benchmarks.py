# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/ says of its measurements; the measurements themselves need a quiet GPU."""

import dataclasses
import itertools
import pickle
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fusedops.bind.bind import bind
from fusedops.generate.target import Target
from fusedops.plan import forward as plan
from fusedops.schedule.tuning_file import read as read_tuning
from fusedops.schedule.tuning_file import text_of
from fusedops.tuning.problem import kernel_of

FOLDER = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(FOLDER))  # Last: its modules go by short names.

import alphafold  # noqa: E402
import beside  # noqa: E402
import cells  # noqa: E402
import counters  # noqa: E402
import errors  # noqa: E402
import figures  # noqa: E402
import functors  # noqa: E402
import linear_losses  # noqa: E402
import losses  # noqa: E402
import lse_and_sink  # noqa: E402
import models  # noqa: E402
import page  # noqa: E402
import peers  # noqa: E402
import profiles  # noqa: E402
import quantized  # noqa: E402
import run  # noqa: E402
import sharded  # noqa: E402
import sharded_estimate  # noqa: E402
import summary  # noqa: E402
import sweep  # noqa: E402
import targets  # noqa: E402
import traffic  # noqa: E402
import tune  # noqa: E402
import turns  # noqa: E402
import warm  # noqa: E402
import wire  # noqa: E402
from points import (  # noqa: E402
    AWKWARD,
    COLUMNS,
    DTYPES,
    FEW_ROWS,
    OPS,
    RESIDUAL,
    SHORT,
    TRAINING,
    Point,
    Selection,
    rows_of,
)
from results import Result  # noqa: E402
from sheet import Sheet, read  # noqa: E402


def measured(point, percent, **peers):
    """The rows of a point of the sweep: ours, and peers with our speed beside theirs."""
    best = point.moved / 4.3e12
    seconds = 100 * best / percent
    target = targets.percent(point)
    yield Result(
        "sweep",
        point.case,
        "fusedops",
        seconds,
        point.moved,
        best,
        target=f">= {target:.0f} %",
        met=percent >= target,
        point=point,
    )
    for by, ratio in peers.items():
        yield Result(
            "sweep",
            point.case,
            by,
            ratio * seconds,
            point.moved,
            best,
            beside=seconds,
            target=">= 0.97 x",
            met=ratio >= targets.BESIDE_PEERS,
            note="1.0",
            point=point,
        )


def sized(op, direction, columns, dtype="float16"):
    return Point(op, direction, dtype, rows_of(columns, dtype), columns)


@pytest.fixture
def sheet(tmp_path):
    book = Sheet(tmp_path / "some.csv")
    points = {
        sized("softmax", "forward", 1024): (98.0, {"Liger": 1.2, "QuACK": 0.99}),
        sized("softmax", "backward", 1024): (92.0, {"Liger": 0.9, "QuACK": 1.5}),
        sized("layer_norm", "backward", 50257): (70.0, {}),
    }
    for point, (percent, ratios) in points.items():
        for result in measured(point, percent, **ratios):
            book.add(result.cells())
    unmasked = "<= 0.8 of the time unmasked"
    causal = Result(
        "causal", "(48, 1024, 1024)", "fusedops", 0.9, against=1.0, target=unmasked, met=False
    )
    book.add(causal.cells())
    book.save()
    return book


def test_targets_are_complete():
    """Every op has one forward at every column; backwards have theirs where they are promised."""
    for op in OPS:
        for columns in COLUMNS:
            assert targets.percent(sized(op, "forward", columns)) in (90, 95, 97)
    for columns in AWKWARD:
        assert targets.percent(sized("softmax", "backward", columns)) == 90
        assert targets.percent(sized("rms_norm", "backward", columns)) == 80
    assert targets.percent(sized("softmax", "backward", 65536)) == 97
    assert targets.percent(sized("layer_norm", "backward", 65536)) == 90
    assert targets.percent(sized("layer_norm", "backward", 512)) == 80
    assert targets.percent(sized("layer_norm", "backward", 131072)) is None
    forward, softmax, norm = len(COLUMNS), 20, 18
    promised = list(cells.promised())
    assert len(promised) == len(DTYPES) * (4 * forward + softmax + 2 * norm) + len(SHORT)
    short = [targets.percent(sized("layer_norm", "backward", columns)) for columns in SHORT]
    assert short == [60, 75, 82]
    assert targets.percent(sized("layer_norm", "backward", 64, "bfloat16")) is None
    assert targets.percent(sized("rms_norm", "backward", 64)) is None


def test_points_fit():
    for points in Selection().sweep():
        assert points[0].bytes <= 49152 * 32768 * 2
        assert len(points) == 8
    assert rows_of(32768, "float16") == 49152
    assert rows_of(32768, "float32") == 24576
    few = [points[0] for points in Selection(columns=(1024, 257)).few_rows()]
    assert [(point.rows, point.columns) for point in few] == [(rows, 1024) for rows in FEW_ROWS]


def test_a_sheet_replaces_and_keeps(sheet, tmp_path):
    before = read(sheet.path)
    again = Sheet(sheet.path)
    point = sized("softmax", "forward", 1024)
    for result in measured(point, 99.0):
        again.add(result.cells() | {"driver": "580"})
    again.save()
    after = read(sheet.path)
    assert len(after) == len(before)
    assert [row["case"] for row in after] == [row["case"] for row in before]
    changed = [
        new for old, new in zip(before, after, strict=True) if old["percent"] != new["percent"]
    ]
    assert [(row["by"], row["percent"], row["driver"]) for row in changed] == [
        ("fusedops", "99.0", "580")
    ]
    assert after[-1]["driver"] == ""
    assert [path.name for path in tmp_path.iterdir()] == ["some.csv"]


def test_a_summary(sheet):
    rows = read(sheet.path)
    found = {(cell.group, cell.name): cell for cell in cells.cells(rows)}
    assert len(found) == 6
    assert sum(cell.met for cell in found.values()) == 2
    norm = found["ceiling", sized("layer_norm", "backward", 50257).case]
    assert norm.short == pytest.approx(10)
    peer = found["best peer", sized("softmax", "backward", 1024).case]
    assert peer.short == pytest.approx(100 * (1 - 0.9 / 0.97))
    assert peer.said == "0.900 x Liger"
    assert found["causal", "(48, 1024, 1024)"].short == pytest.approx(12.5, rel=0.01)
    assert len(cells.missing(rows)) == len(list(cells.promised())) - 3
    console = Console(record=True, width=120)
    summary.show(sheet.path, console)
    text = console.export_text()
    assert "More than 8 points or percent short of its target: 2" in text
    assert "Slower than a peer: 1" in text
    assert "Short of its target by less: 1" in text
    summary.grid([row for row in rows if row["part"] == "sweep"], console)
    assert "92.0! (0.90 x)" in console.export_text()


def test_a_page(sheet):
    text = page.page(read(sheet.path))
    assert "2 of 6 targets are met." in text
    assert "**92.0** (97)" in text
    assert "**0.900 x Liger**" in text
    assert "| causal | <= 0.8 of the time unmasked | 0 of 1 | 0.900 of the time unmasked (" in text
    assert "| <= 0.8 of the time unmasked | (48, 1024, 1024) | 0.900 of the time unmasked |" in text


def test_the_page_is_that_of_the_results(tmp_path):
    """It is made again when rows or targets have changed: by this command of README.md."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    command = re.search(r"python benchmarks/page.py (.*benchmarks/results/.*)", text)[1]
    *paths, out = [FOLDER.parent / path for path in command.split()]
    page.main(paths, tmp_path / out.name)
    assert out.read_text(encoding="utf-8") == (tmp_path / out.name).read_text(encoding="utf-8")


def made(*results):
    """The rows of a CSV."""
    return [result.cells() for result in results]


def verdicts(rows):
    """Each cell's verdict and figure by its target."""
    return {cell.target: (cell.met, cell.said) for cell in cells.cells(rows)}


@pytest.mark.parametrize(
    ("columns", "percent", "met"), [(32, 60.0, True), (64, 74.9, False), (128, 82.0, True)]
)
def test_rows_from_before_a_target_are_judged(columns, percent, met):
    """A row with the same target keeps its verdict, which is of a figure before it was rounded."""
    point = sized("layer_norm", "backward", columns)
    best = point.moved / 4e12
    old = Result("sweep", point.case, "fusedops", 100 * best / percent, 0, best, point=point)
    (cell,) = cells.cells(made(old))
    assert (cell.group, cell.met) == ("ceiling", met)
    figure = f"{percent:.1f}" if met else f"**{percent:.1f}**"
    assert f"| {figure} ({targets.percent(point):.0f}) |" in page.page(made(old))
    judged = dataclasses.replace(old, target=cell.target, met=not met)
    assert [cell.met for cell in cells.cells(made(judged))] == [not met]


@pytest.mark.parametrize(
    ("op", "rows", "ratios", "met", "said"),
    [
        ("layer_norm", 8, {"torch.compile": 0.99, "torch eager": 2.0}, False, "0.990 x torch.com"),
        ("layer_norm", 8, {"torch.compile": 1.0, "torch eager": 0.98}, True, "1.000 x torch.com"),
        ("rms_norm", 64, {"torch.compile": 0.99}, True, "0.990 x torch.compile"),
        ("softmax", 8, {"torch.compile": 0.98}, True, "0.980 x torch.compile"),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_few_rows(direction, op, rows, ratios, met, said):
    """Norms of 8 x 1024 are held to all of torch.compile's speed."""
    point = Point(op, direction, "float16", rows, 1024)
    peers = [
        Result("few_rows", point.case, by, ratio, beside=1.0, point=point)
        for by, ratio in ratios.items()
    ]
    (cell,) = cells.cells(made(*peers))
    assert (cell.group, cell.met, cell.said.startswith(said)) == ("few rows", met, True)
    assert f"| {cell.said} |" in page.page(made(*peers)).replace("**", "")


def product(case, ours, note="by Together", **others):
    """Rows of `gemm`: seconds of ours, and of the others by a short name."""
    names = {
        "eager": "torch eager",
        "compiled": "torch.compile",
        "trial": "torch.compile, max-autotune",
        "epilogue": "cuBLASLt's epilogue",
        "two": "fusedops, two_kernels",
        "turns": "fusedops, InTurns",
    }
    rows = [Result("gemm", case, "fusedops", ours, note=note)]
    rows += [Result("gemm", case, names[by], taken, beside=ours) for by, taken in others.items()]
    return made(*rows)


class TestProducts:
    SHALLOW, DEEP = "16384 x 4096 x 1024, forward", "4096 x 4096 x 4096, forward"

    def test_gelu(self):
        case = f"bias, GELU, float16, {self.SHALLOW}"
        chosen = "what is chosen: >= 0.98 x any other implementation and cuBLASLt"
        of_epilogue = "bias, GELU: >= 0.95 x cuBLASLt's epilogue"
        of_two = "bias, GELU, K = 1000 or 1024: >= 1.15 x fusedops, two_kernels"
        assert verdicts(product(case, 1.0, epilogue=0.96, two=1.14, turns=1.1)) == {
            of_epilogue: (True, "0.960 x"),
            of_two: (False, "1.140 x"),
            chosen: (False, "0.960 x cuBLASLt's epilogue"),
        }
        assert verdicts(product(case, 1.0, epilogue=0.94, two=1.15)) == {
            of_epilogue: (False, "0.940 x"),
            of_two: (True, "1.150 x"),
            chosen: (False, "0.940 x cuBLASLt's epilogue"),
        }
        deep = product(f"bias, GELU, bfloat16, {self.DEEP}", 1.0, two=1.01, turns=0.98)
        assert verdicts(deep) == {chosen: (True, "0.980 x fusedops, InTurns")}

    def test_dropout(self):
        store = "bias, dropout, residual"
        of_two = f"{store}, K = 1000 or 1024: >= 1.25 x fusedops, two_kernels"
        of_eager = f"{store}: >= 2 x torch eager"
        for k, two, met in ((1000, 1.25, True), (1024, 1.24, False)):
            case = f"{store}, float16, 10007 x 3000 x {k}, forward"
            found = verdicts(product(case, 1.0, two=two, eager=2.0))
            assert found[of_two] == (met, f"{two:.3f} x")
            assert found[of_eager] == (True, "2.000 x")
        found = verdicts(product(f"{store}, float16, {self.DEEP}", 1.0, two=0.99, eager=1.9))
        assert found[f"{store}, K = 4096: >= 1 x fusedops, two_kernels"] == (False, "0.990 x")
        assert found[of_eager] == (False, "1.900 x")

    @pytest.mark.parametrize("store", ["a softcap of one's own", "a gate of one's own"])
    def test_functors_of_ones_own(self, store):
        target = f"{store}, K = 1000 or 1024: >= 1.15 x torch.compile, max-autotune"
        for taken, met in ((1.15, True), (1.14, False)):
            found = verdicts(product(f"{store}, float16, {self.SHALLOW}", 1.0, trial=taken))
            assert found[target] == (met, f"{taken:.3f} x")
        assert target not in verdicts(product(f"{store}, float16, {self.DEEP}", 1.0, trial=1.0))

    def test_a_block(self):
        """Its other ways are other declarations, no implementations."""
        case = "block 1024 -> 4096 -> 1024, float16, 16384 rows, forward and backward"
        rows = product(case, 1.0, "", compiled=1.1, eager=1.2)
        rows += made(Result("gemm", case, "fusedops, two layers", 0.9, beside=1.0))
        assert verdicts(rows) == {
            "block: >= 1.1 x torch.compile": (True, "1.100 x"),
            "block: >= 1.3 x torch eager": (False, "1.200 x"),
        }

    def test_two_kernels_that_are_chosen(self):
        """They are no faster than themselves, whatever they took when they were not chosen."""
        case = f"bias, GELU, float16, {self.SHALLOW}"
        found = verdicts(product(case, 1.0, "by two_kernels", turns=1.1, two=1.2))
        target = "bias, GELU, K = 1000 or 1024: >= 1.15 x fusedops, two_kernels"
        assert found[target] == (False, "1.000 x")

    def test_what_failed(self):
        """Of ours it is not met; of a peer's nothing is claimed."""
        case, why = f"bias, GELU, float16, {self.SHALLOW}", "not measured: no room"
        rows = made(
            Result("gemm", case, "fusedops", note=why),
            Result("gemm", case, "cuBLASLt's epilogue", 1.0, against=1.0),
            Result("gemm", case, "fusedops, two_kernels", note=why),
        )
        assert [*verdicts(rows).values()] == [(False, "not measured")] * 2
        assert cells.cells(product(case, 1.0, "")) == []


@pytest.mark.parametrize(
    ("target", "figures", "short", "said"),
    [
        (">= 97 %", {"seconds": 1.0, "ceiling": 0.8}, 17, "80.0 %"),
        (">= 97 %", {"note": "failed: why"}, 100, "failed: why"),
        (">= 3 x", {"seconds": 2.0, "beside": 1.0}, 100 / 3, "2.000 x"),
        (">= 1 x torch", {"seconds": 2.0, "against": 1.0}, 50, "0.500 x torch"),
        ("<= 1 x fusedops", {"seconds": 0.8, "beside": 1.0}, 25, "1.250 x fusedops"),
        ("<= 1 ms", {"seconds": 3e-3}, 200, "3 ms"),
        ("<= 60 s", {"seconds": 30.0}, -50, "30 s"),
        ("<= 40 kernels", {"note": "50 kernels for 1000 lengths"}, 25, "50 kernels"),
        ("<= 16 bytes a row", {"held": 32.0}, 100, "32 bytes a row"),
        ("within 3 points", {"note": "-6.0 points"}, 100, "6.0 points"),
    ],
)
@pytest.mark.parametrize("met", [False, True])
def test_a_target_of_a_rows_own(target, figures, short, said, met):
    """The row's verdict counts; how far it is from the target is of its unit."""
    rows = made(Result("some", "a", "another", target=target, met=met, **figures))
    (cell,) = cells.cells(rows)
    assert (cell.group, cell.met, cell.said) == ("some", met, said)
    assert cell.short == pytest.approx(short)
    text = page.page(rows)
    assert f"{int(met)} of 1 targets are met." in text
    # The peer stands with a target that is a speed beside it.
    target, name = (f"{target} another", "a") if target == ">= 3 x" else (target, "a, another")
    assert f"| some | {target} | {int(met)} of 1 | {said} ({name}) |" in text
    assert (f"| some | {target} | {name} | {said} |" in text) != met


@pytest.mark.parametrize("path", ["h200.csv", "cpu-zen4.csv"])
def test_no_target_is_left_out(path):
    """Each row that has a target is a cell, or of a point that is one."""
    rows = read(FOLDER / "results" / path)
    groups = {cell.group for cell in cells.cells(rows)}
    assert {row["part"] for row in rows if row["target"]} - {*cells.GRIDS} <= groups


@pytest.mark.thorough
def test_plots(sheet, tmp_path):
    pytest.importorskip("matplotlib", reason="a part of the extra `bench`")
    import plots

    plots.main(sheet.path, tmp_path / "plots")
    drawn = sorted((tmp_path / "plots").iterdir())
    assert [each.name for each in drawn] == [
        "layer_norm_backward.svg",
        "softmax_backward.svg",
        "softmax_forward.svg",
    ]
    first = drawn[1].read_bytes()
    assert b"Liger" in first
    assert b"<dc:date>" not in first
    plots.main(sheet.path, tmp_path / "plots")
    assert drawn[1].read_bytes() == first


def test_errors(tmp_path):
    chosen = Selection(ops=("softmax",), passes=("forward",), dtypes=("float16",), columns=(32,))
    book, console = tmp_path / "mine.csv", Console(record=True, width=120)
    found, failed = run.measure(["errors"], chosen, book, console)
    assert not failed
    ours, theirs = found["errors"]
    assert (ours["by"], theirs["by"]) == ("fusedops", "float32 chain")
    for row in (ours, theirs):
        assert 0.4 < float(row["max ulp"]) < 0.6
        assert 0.2 < float(row["rms ulp"]) < 0.4
    console.print(errors.digest(found["errors"]))
    assert "softmax" in console.export_text()
    saved = read(tmp_path / "errors-mine.csv")
    assert [row["max ulp"] for row in saved] == [ours["max ulp"], theirs["max ulp"]]
    assert saved[0]["torch"] == torch.__version__


TINY = models.Sizes(1, 16, 2, 24, 13, batch=2, length=8)


@pytest.fixture
def one_thread():
    """Small sizes on a shared machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "compiled"),
    [
        ("decoder like Llama", False),
        ("pairs like AlphaFold's, dropout 0.25", False),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ("encoder like BERT-base, dropout 0.1", False),
                ("ViT-B/16", False),
                ("decoder like Llama", True),
            )
        ),
    ],
)
def test_models_on_a_cpu(name, compiled, one_thread):
    """Every way runs, from the same weights, and loses what eager loses, where nothing drops."""
    tiny = {name: models.MODELS[name]._replace(sizes=TINY)}
    ways = {by: way for by, way in models.WAYS.items() if bool(way.backend) is compiled}
    found = list(models.measured(Selection(dtypes=("bfloat16",)), tiny, ways, "cpu", 2))
    assert not [each.note for each in found if "not measured" in each.note]
    assert [each.by for each in found] == [by for by in ways for _ in range(2)]
    assert all(each.seconds > 0 for each in found[::2])
    for each in found[1::2]:
        apart = float(each.note.split("at most ")[1].split()[0])
        # Losses near ln 13 of roundings to bfloat16; dropout is drawn in another way.
        assert apart <= (0.5 if "dropout" in name else 0.05), each.by


@pytest.mark.thorough
@pytest.mark.exhaustive
def test_models_side_by_side(one_thread, tmp_path, monkeypatch):
    """Each way in a process of its own: the same losses as in one, and a page about each."""
    name, device = "ViT-B/16", "cpu"
    tiny = {name: models.MODELS[name]._replace(sizes=TINY)}
    ways = {by: models.WAYS[by] for by in ("torch eager", "fusedops, eager attention")}
    chosen = Selection(dtypes=("bfloat16",), models=("vit",), profile=tmp_path / "pages")
    inside = list(models.measured(chosen, tiny, ways, device, 2))
    monkeypatch.setattr(models, "most_gib", lambda device: 30)
    apart = list(models.measured(chosen, tiny, ways, device, 2))
    assert [each.by for each in apart] == [by for by in ways for _ in range(2)]
    assert [each.note for each in apart[1::2]] == [each.note for each in inside[1::2]]
    pages = sorted((tmp_path / "pages").iterdir())
    assert len(pages) == 2
    assert all("issued by the host" in page.read_text() for page in pages)
    assert not list(models.measured(Selection(models=("decoder",)), tiny, ways, device, 2))


@pytest.mark.thorough
@pytest.mark.exhaustive
def test_a_way_that_fails_side_by_side():
    """Whether it had room beside others or not."""
    jobs = {"missing": turns.Job(models.Timed), "there": turns.Job(Waiting)}
    for room in (1, 2):
        assert [(name, after) for name, _, after in turns.in_turns(jobs, room)] == [
            ("missing", None),
            ("there", 2),
        ]


class Waiting:
    def prepare(self):
        return 1

    def run(self):
        return 2


def test_what_a_device_does_in_time():
    """Spans that overlap count once; a gap is between what has ended and what begins."""
    assert profiles.busy([(5, 6), (0, 2), (1, 3), (1, 2)]) == (6, 4, 2)
    assert profiles.busy([]) == (0, 0, 0)


@pytest.mark.thorough
def test_models_that_fail_are_named(one_thread):
    def broken(sizes, attention):
        if attention == "fused":
            raise MemoryError("not so much\nas that")
        return models.Vision(sizes, attention)

    one = {"some": models.Model(broken, TINY)}
    ways = {by: models.WAYS[by] for by in ("torch eager", "fusedops, eager attention")}
    found = list(models.measured(Selection(dtypes=("bfloat16",)), one, ways, "cpu", 1))
    assert [each.note for each in found][2:] == ["not measured: MemoryError: not so much"]


def test_a_part_that_breaks_off(tmp_path, monkeypatch):
    """What it found until then is kept, and the other parts run."""
    result = Result("host", "a", "b", 1.0)

    def broken(chosen):
        yield dataclasses.replace(result, part="cpu")
        raise RuntimeError("no more")

    monkeypatch.setattr(run, "PARTS", {"cpu": broken, "host": lambda chosen: iter([result])})
    console = Console(record=True, width=120)
    found, failed = run.measure(["cpu", "host"], Selection(), tmp_path / "mine.csv", console)
    assert failed == ["cpu"]
    assert "no more" in console.export_text()
    assert [row["part"] for row in read(tmp_path / "mine.csv")] == ["cpu", "host"]
    assert {part: len(rows) for part, rows in found.items()} == {"cpu": 1, "host": 1}


def test_pairs_of_equal_traffic(monkeypatch, tmp_path):
    """What `traffic` says of each pair."""
    others, made = {"softmax": 89, "layer_norm": 80, "rms_norm": 91}, []

    def seconds(way, point, buffers):
        percent = 90 if way is traffic.WAYS[point.op][0] else others[point.op]
        return 100 * point.moved / 4e12 / percent

    monkeypatch.setattr(traffic, "Buffers", made.append)
    monkeypatch.setattr(traffic.ceiling, "of_bytes", lambda size, reads: size * (reads + 1) / 4e12)
    monkeypatch.setattr(traffic, "attempt", lambda measure: (measure(), ""))
    monkeypatch.setattr(traffic, "seconds", seconds)
    chosen = Selection(columns=(1023, 50257))
    found, failed = run.measure(["traffic"], chosen, tmp_path / "mine.csv", Console(record=True))
    assert not failed
    assert len(made) == 2  # one set of buffers a shape
    rows = found["traffic"]
    assert len(rows) == 2 * 2 * 2 * len(traffic.WAYS)
    said = {(row["op"], row["by"]): (row["percent"], row["note"], row["met"]) for row in rows}
    assert said["softmax", "nothing"] == ("90.0", "", "")
    assert said["softmax", "Scale(number)"] == ("89.0", "-1.0 points", "yes")
    assert said["layer_norm", "Scale(gamma), Bias(beta)"] == ("80.0", "-10.0 points", "no")
    assert said["rms_norm", "Scale(gamma)"] == ("91.0", "+1.0 points", "yes")
    assert len(read(tmp_path / "mine.csv")) == len(rows)  # each row has a key of its own


def test_lse_and_sink_beside_torch(monkeypatch, tmp_path):
    """Each way is measured at each point, and its row has a key of its own."""
    monkeypatch.setattr(lse_and_sink, "Buffers", lambda point: None)
    monkeypatch.setattr(lse_and_sink.ceiling, "of_bytes", lambda size, reads: 1.0)
    monkeypatch.setattr(lse_and_sink, "attempt", lambda measure: (measure(), ""))
    monkeypatch.setattr(lse_and_sink, "seconds", lambda way, point, buffers: 2.0)
    path = tmp_path / "mine.csv"
    found, failed = run.measure(["lse_and_sink"], Selection(), path, Console(record=True))
    assert not failed
    rows = found["lse_and_sink"]
    ways = [way.by for way in lse_and_sink.ways("softmax")]
    assert len(rows) == 2 * 2 * len(lse_and_sink.COLUMNS) * len(ways) == len(read(path))
    assert {row["percent"] for row in rows} == {"50.0"}


def test_losses_beside_others(monkeypatch, tmp_path):
    """Each loss is measured at each shape in both passes and in a step, and checked before."""
    monkeypatch.setattr(losses.ceiling, "of_bytes", lambda size: 1.0)
    monkeypatch.setattr(losses, "attempt", lambda measure: (measure(), ""))
    monkeypatch.setattr(losses, "_is_off", lambda loss, given: "")
    monkeypatch.setattr(losses, "_forward", lambda loss, given: 1.04)
    monkeypatch.setattr(losses, "_backward", lambda loss, given: 2.0)
    monkeypatch.setattr(losses, "_step", lambda loss, given: 3.0)
    monkeypatch.setattr(losses, "sets", lambda size: 0)
    path = tmp_path / "mine.csv"
    found, failed = run.measure(["losses"], Selection(), path, Console(record=True))
    assert not failed
    rows = found["losses"]
    ways, whole = losses.ways(), losses.ways("mean")
    assert len(rows) == 2 * len(losses.SHAPES) * (2 * len(ways) + len(whole)) == len(read(path))
    ours = [row for row in rows if row["by"] == "fusedops"]
    assert {(row["target"], row["met"]) for row in ours} == {
        (">= 95 %", "yes"),
        (">= 92 %", "no"),
        ("", ""),
    }


def test_linear_losses_beside_others(monkeypatch):
    """Each way is compared with float64, and has a time and a peak; what is missing says so."""

    def attempt(measure):
        try:
            return measure(), ""
        except peers.SkipError as why:
            return 0.0, f"skipped: {why}"

    monkeypatch.setattr(linear_losses, "SHAPES", ((64, 32, 100),))
    monkeypatch.setattr(linear_losses, "peak_of", lambda call, factors: len(call()) / 2)
    monkeypatch.setattr(linear_losses, "queue_seconds", lambda calls: 2.0)
    monkeypatch.setattr(linear_losses, "attempt", attempt)
    monkeypatch.setattr(torch, "compile", lambda way, **options: way)
    rows = [one.cells() for one in linear_losses.measured(Selection(), "cpu")]
    found = {(row["case"].split()[4], row["by"]): row for row in rows}
    assert len(found) == len(rows) == 2 * len(linear_losses.ways())
    for dtype, by in itertools.product(("float16", "bfloat16"), ("fusedops", "torch eager")):
        assert found[dtype, by]["note"] == "peak 1.50 of factors and gradients"
        assert found[dtype, by]["microseconds"] == "2000000.00"
    assert "skipped: quack-kernels is not installed" in found["float16", "QuACK"]["note"]


def test_a_linear_loss_that_is_wrong_is_found():
    given = torch.randn(64, 32), torch.randn(100, 32).requires_grad_(), torch.arange(64)

    def inexact(x, w, target):
        return 1.1 * linear_losses._of_logits(x, w, target)

    def without_w(x, w, target):
        return linear_losses._of_logits(x, w.detach() + w - w, target)

    said = linear_losses.is_off(inexact, *given)
    assert said.startswith("; the loss is off by 0.1; x's gradient is off by 0.1; w's")
    with pytest.raises(ArithmeticError, match="w's gradient is off by 1"):
        linear_losses.is_off(without_w, *given)
    assert linear_losses.is_off(linear_losses._of_logits, *given) == ""


@pytest.mark.parametrize("case", functors.CASES, ids=lambda case: case.name)
def test_the_bytes_of_a_functors_call(case):
    """What is counted is what `explain` says of the call."""
    made = case.make(case.shape(384, 64), torch.float16, "cpu")
    outputs = made.case.op.unfused(made.x, **made.operands, **made.case.numbers)
    told = case.op.explain(made.x, **made.operands, **case.numbers)
    assert made.bytes(outputs) == told.bytes
    reads, writes = made.streams(outputs)
    assert reads == 1 + ("g" in made.operands) + ("r" in made.operands)
    assert writes == len(case.op.outputs)


def on_this_machine(monkeypatch, module):
    """The clock of a GPU is not there: each call is made once."""

    def once(calls):
        for call in calls:
            call()
        return 2.0

    monkeypatch.setattr(module, "queue_seconds", once)


@pytest.mark.thorough
def test_functors_are_timed(monkeypatch):
    on_this_machine(monkeypatch, functors)
    monkeypatch.setattr(functors, "sets", lambda moved: 2)
    monkeypatch.setattr(functors, "rows_of", lambda columns, dtype: 192)
    monkeypatch.setattr(functors, "attempt", lambda measure: (measure(), ""))
    monkeypatch.setattr(functors.ceiling, "of_bytes", lambda size, reads, writes: 1.0)
    monkeypatch.setattr(functors, "host_seconds", lambda calls, device: [1.0] * len(calls))
    found = list(functors.measured(Selection(columns=(64,)), "cpu"))
    assert {result.cells()["percent"] for result in found} == {"50.0"}
    assert len({result.case for result in found}) == len(functors.CASES)
    assert len({result.case for result in functors.host_calls()}) == len(functors.CASES)


@pytest.mark.thorough
def test_the_block_of_alphafold_is_timed(monkeypatch):
    on_this_machine(monkeypatch, alphafold)
    monkeypatch.setattr(alphafold, "NODES", (6,))
    monkeypatch.setattr(alphafold, "DIM", 16)
    monkeypatch.setattr(alphafold, "HEADS", 2)
    monkeypatch.setattr(torch, "compile", lambda way, **options: way)
    found = [result.cells() for result in alphafold.measured("cpu")]
    assert len(found) == 2 * 4
    assert {row["ratio"] for row in found if row["by"] != "fusedops"} == {"1.000"}


def test_a_pair_of_which_one_fails(monkeypatch):
    monkeypatch.setattr(traffic, "Buffers", lambda point: None)
    monkeypatch.setattr(traffic.ceiling, "of_bytes", lambda size, reads: 1.0)
    results = iter([(1.0, ""), (2.0, ""), (0.0, "failed: no room")])
    monkeypatch.setattr(traffic, "attempt", lambda measure: next(results))
    chosen = Selection(ops=("softmax",), passes=("forward",), columns=(1023,))
    first, second = [result.cells() for result in traffic.pairs(chosen)]
    assert (first["percent"], first["note"]) == ("50.0", "")
    assert (second["percent"], second["note"], second["met"]) == ("", "failed: no room", "")


@pytest.mark.thorough
@pytest.mark.parametrize("op", traffic.WAYS)
def test_a_pair_is_one(op):
    """Both ways run, give the same and have the same schedules; other processes can build them."""
    first, other = traffic.WAYS[op]
    x, *parameters = torch.randn(3, 5, 12289)[: 1 + len(traffic.PLAIN[op].parameters)]
    parameters = [each[0].contiguous() for each in parameters]
    point = sized(op, "forward", 12289)
    results = [way.function(point)(x, *parameters) for way in (first, other)]
    if op != "softmax":  # its scale changes the result
        torch.testing.assert_close(*results)
    for way in pickle.loads(pickle.dumps((first, other))):
        assert way.function(point)(x, *parameters).shape == x.shape
    names = dict(zip(traffic.PLAIN[op].parameters, parameters, strict=True))
    tiles = [
        plan.describe(bind(way.op, x, {**names, **way.numbers}, {}), Target.named("sm_90")).tile
        for way in (first, other)
    ]
    assert tiles[0] == tiles[1]


class Timed:
    """Calls that stand for a CUDA graph of them."""

    def __init__(self, calls):
        for call in calls:
            call()

    def seconds(self, warm=0.0, samples=1):
        return 2.0


class Wrong(peers.Eager):
    by = "wrong"

    def function(self, point):
        right = super().function(point)
        return lambda x, *operands: right(x.abs(), *operands)


class Broken(peers.Eager):
    by = "broken"

    def function(self, point):
        raise ValueError("no such kernel\nat all")


class Few(peers.Eager):
    by = "few"
    columns = frozenset((64,))


class Absent(peers.Eager):
    by, distribution = "absent", "no-such-distribution"


class TestBeside:
    @pytest.fixture
    def rows(self, monkeypatch):
        """Of every op, by point and by whom, as if this machine had a GPU."""

        def normal(point, *shape):
            return torch.randn((*shape, point.columns)).to(DTYPES[point.dtype])

        kinds = {"eager": peers.Eager, "wrong": Wrong, "broken": Broken, "few": Few}
        some = {name: kind() for name, kind in {**kinds, "absent": Absent}.items()}
        monkeypatch.setattr(beside, "FUSEDOPS", peers.Eager())
        monkeypatch.setattr(sweep, "_normal", normal)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(beside, "copies", lambda *streams: [[lambda: None]])
        monkeypatch.setattr(beside, "free", lambda device: None)
        monkeypatch.setattr(beside, "most_gib", lambda device: 0)
        for module in (beside, sweep):
            monkeypatch.setattr(module, "PEERS", some)
            monkeypatch.setattr(module, "side_stream", lambda: None)
            monkeypatch.setattr(module, "Captured", Timed)
        monkeypatch.setattr("points.TRAINING", dict.fromkeys(TRAINING, ((8, 32),)))
        chosen = Selection(peers=tuple(some), dtypes=("float16",))
        with torch.no_grad():
            return [result.cells() for result in beside.measured(chosen)]

    def test_all_who_are_right_are_timed(self, rows):
        assert rows[4]["note"] == "skipped: no-such-distribution is not installed"
        assert {row["by"] for row in rows[5:]} == {"torch eager", "wrong", "broken"}
        cases = {row["case"] for row in rows[5:]}
        assert len(cases) == 2 * len(TRAINING)
        assert f"{RESIDUAL} backward float16 (8, 32)" in cases
        assert len(rows[5:]) == 4 * len(cases)  # ours has the name of torch's here
        for row in rows[5:]:
            if row["by"] == "torch eager":
                assert (row["microseconds"], row["percent"]) == ("2000000.00", "100.0")
            elif row["by"] == "broken":
                assert (row["microseconds"], row["note"]) == (
                    "",
                    "failed: ValueError: no such kernel",
                )
            else:
                assert row["microseconds"] == ""
                assert "its result is off torch's by" in row["note"]

    def test_rows_are_held_to_the_peers_target(self, rows):
        found = {cell.group for cell in cells.cells(rows)}
        assert found == {"shapes of training"}

    def test_the_table_says_who_is_first(self):
        found = []
        for direction, ratios in (
            ("forward", {"QuACK": 1.004, "cuDNN": 1.25}),
            ("backward", {"QuACK": 0.9, "cuDNN": 0.95}),
        ):
            point = Point("rms_norm", direction, "float16", 16384, 4096)
            found.append(Result("beside", point.case, "fusedops", 1.0, 0, 0.8, point=point))
            found += [
                Result("beside", point.case, by, ratio, beside=1.0, point=point)
                for by, ratio in ratios.items()
            ]
        day = {"date": "2026-11-28", "device": "a GPU", "torch": "2.11.0"}
        text = figures._training([row | day for row in made(*found)])
        assert "a GPU, torch 2.11.0, 2026-11-28." in text
        assert "| RMSNorm, forward | 16384 x 4096 | 80 | 1.00 | 1.25 | level |" in text
        assert "| RMSNorm, backward | 16384 x 4096 | 80 | 0.90 | 0.95 | **QuACK, 10 %** |" in text
        assert figures._first({"cuDNN": 1.25}) == "fusedops, 20 %"
        assert figures._training([]) == ""

    def test_what_is_near(self):
        wanted = torch.randn(64, dtype=torch.float16)
        beside.compare([wanted.float() * 1.001], [wanted])
        for result in (wanted * 1.1, wanted * float("nan")):
            with pytest.raises(ValueError, match="off torch's by"):
                beside.compare([result], [wanted])
        with pytest.raises(ValueError, match="2 results, torch has 1"):
            beside.compare([wanted, wanted], [wanted])

    def test_shapes(self):
        every = [point for points in Selection().training() for point in points]
        assert len(every) == 2 * 2 * sum(map(len, TRAINING.values()))
        norms = list(Selection(ops=("rms_norm",), columns=(4096,)).training())
        assert {point.op for points in norms for point in points} == {"rms_norm", RESIDUAL}
        residual = [point for point in every if point.op == RESIDUAL][:2]
        assert [(point.reads, point.writes) for point in residual] == [(2, 2), (3, 1)]
        assert residual[0].moved == 4 * residual[0].bytes


class TestPeers:
    @pytest.mark.parametrize(("columns", "clusters"), [(1024, {1}), (8192, {1, 2})])
    def test_part_of_quacks_configurations(self, columns, clusters):
        kinds = itertools.product((128, 256), (64, 128, 256), (1, 2, 4), (False, True), (2, 3))
        configs = [
            types.SimpleNamespace(
                num_threads=threads,
                threads_per_row=of_row,
                cluster_n=cluster,
                reload_x=None,
                use_tma=tma,
                smem_stages=stages,
            )
            for threads, of_row, cluster, tma, stages in kinds
        ]
        left = [each for each in configs if peers._worth_a_trial(each, columns)]
        assert {each.cluster_n for each in left} == clusters
        assert all(each.use_tma for each in left if each.smem_stages == 3)
        assert 0 < len(left) < len(configs) / 2

    def test_what_flashinfer_writes_over_is_its_own(self, monkeypatch):
        def added(x, r, gamma, eps):
            r += x
            x.copy_(torch.nn.functional.rms_norm(r, r.shape[-1:], gamma, eps))

        fake = types.SimpleNamespace(fused_add_rmsnorm=added)
        monkeypatch.setitem(sys.modules, "flashinfer", types.SimpleNamespace(norm=fake))
        monkeypatch.setitem(sys.modules, "flashinfer.norm", fake)
        function = peers.PEERS["flashinfer"].function(Point(RESIDUAL, "forward", "float32", 4, 8))
        x, r, gamma = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
        before = x.clone(), r.clone()
        beside.compare(function(x, r, gamma), peers.PLAIN[RESIDUAL].torch(*before, gamma))
        function(x, r, gamma)
        torch.testing.assert_close((x, r), before)


class TestQuantized:
    @pytest.mark.parametrize("case", quantized.CASES.values(), ids=quantized.CASES)
    def test_what_each_case_gives(self, case):
        given = quantized.tensors(case, 4, 256, "cpu")
        found = quantized.ours(case, given)()
        quantized.check(case, found, given)
        with pytest.raises(ValueError, match="y is off by"):
            quantized.check(case, {**found, "y": torch.zeros_like(found["y"])}, given)

    def test_flashinfer_is_given_the_same(self, monkeypatch):
        def fused(y, x, stream, g, scale, eps):
            stream += x
            normed = torch.nn.functional.rms_norm(stream.float(), g.shape, g.float(), eps)
            y.copy_(normed / scale)

        fake = types.SimpleNamespace(fused_add_rmsnorm_quant=fused)
        monkeypatch.setitem(sys.modules, "flashinfer", types.SimpleNamespace(norm=fake))
        monkeypatch.setitem(sys.modules, "flashinfer.norm", fake)
        case = quantized.CASES["residual, RMSNorm, a given scale"]
        given = quantized.tensors(case, 4, 256, "cpu")
        before = given["r"].clone()
        quantized.check(case, case.theirs(given)(), given)
        assert torch.equal(given["r"], before)


def test_pairs_are_built_ahead():
    chosen = Selection(passes=("forward",), columns=(1023,))
    jobs = list(warm._jobs(chosen, ["traffic"]))
    assert [way.by for _, way in jobs] == [way.by for ways in traffic.WAYS.values() for way in ways]
    assert {point.columns for point, _ in jobs} == {1023}
    assert not list(traffic.pairs(Selection(ops=("log_softmax",))))


def test_names_and_numbers():
    assert run.names(None, OPS, "--op") == OPS
    assert run.names("softmax, rms_norm", OPS, "--op") == ("softmax", "rms_norm")
    assert run.numbers("4096,32", "--columns") == (32, 4096)
    assert run.numbers(None, "--columns") == ()
    with pytest.raises(run.typer.BadParameter, match="soft"):
        run.names("soft", OPS, "--op")
    with pytest.raises(run.typer.BadParameter, match="many"):
        run.numbers("many", "--columns")


def test_counters_are_told_by_kernel(monkeypatch):
    """Of a case with a second kernel both are; the profiler's own lines lie between."""
    cases = (counters.CASES[0], counters.Case(counters.NORM, True, 1024))
    monkeypatch.setattr(counters, "CASES", cases)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    heads = ["ID", "Kernel Name", "Metric Name", "Metric Value"]
    lines = ["==PROF== Connected", "CASE 0 register", "CASE 1 shared", _quoted(heads)]
    for kernel in range(3):
        for number, metric in enumerate(counters.METRICS.values()):
            lines.append(_quoted([str(kernel), "k", metric, f"{1000 * kernel + number:,}"]))
    lines += ["==PROF== Disconnected"]
    rows = counters.page("\n".join(lines)).splitlines()[4:]
    named = [[cell.strip() for cell in row.split("|")[1:5]] for row in rows]
    assert named == [
        ["Softmax", "64", "register", "forward"],
        ["LayerNorm", "1024", "shared", "backward"],
        ["LayerNorm", "1024", "shared", "sums"],
    ]
    spilled = [row.split("|")[-2].strip() for row in rows]
    last = len(counters.METRICS) - 1
    assert spilled == [str(1000 * kernel + last) for kernel in range(3)]


def _quoted(cells):
    return ",".join(f'"{cell}"' for cell in cells)


def test_the_bytes_that_nccl_tells():
    """Events as torch.profiler has them: one beside each operator, and one more with its kernel."""

    def told(collective, into, out, cat="cpu_op", name="record_param_comms"):
        args = {
            "Collective name": collective,
            "In msg nelems": into,
            "Out msg nelems": out,
            "Group size": 4,
            "dtype": "BFloat16",
        }
        return {"cat": cat, "name": name, "args": args, "dur": 3.0}

    events = [
        told("allgather_into_tensor_coalesced", 10, 40),
        told("_reduce_scatter_base", 80, 20),
        told("allreduce", 8, 8),
        told("allreduce", 8, 8, "kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        told("wait", 0, 0),
        {"cat": "kernel", "name": "softmax", "dur": 5.0, "args": {}},
        {"ph": "M", "name": "process_name"},
    ]
    found = wire.of_events(events)
    assert found.calls == {"allgather": 1, "reducescatter": 1, "allreduce": 1}
    assert found.bytes == {"allgather": 60, "reducescatter": 120, "allreduce": 24}
    assert found.received == 204
    assert (found.moving, found.computing) == pytest.approx((3e-6, 5e-6))
    alone = wire.of_events(events[3:4])  # where operators say nothing
    assert alone.bytes == {"allreduce": 24}
    assert "profiler: 204 bytes (allgather x1 60, " in str(found)
    assert "no collective" in str(wire.of_events([]))


def test_the_estimate_of_the_page():
    page = (FOLDER / "log" / "2026-11-25-two-gpus.md").read_text(encoding="utf-8")
    rates, parts = sharded_estimate.table().split("\n\n")
    assert rates in page
    assert parts in page
    total = sum(one.seconds for one in sharded_estimate.parts()[:4]) * sharded_estimate.SIZES.blocks
    assert f"{total * 1e3:.0f} ms a step if nothing overlaps" in page


@pytest.mark.thorough
@pytest.mark.exhaustive
def test_distributed_tensors_are_timed(monkeypatch):
    """Two processes by gloo; the times are not looked at."""
    small = sharded.Measured("float32", (1024,), (8, 64), (16, 32), sharded.Sizes(), samples=1)
    found = list(sharded.measured(small, "cpu"))
    assert [result.note for result in found if result.note.startswith(("failed", "not "))] == []
    cases = {(result.case, result.by) for result in found}
    assert len(cases) == len(found) == 3 + 2 * 2 * 2 + 3 + 3
    assert all(result.seconds > 0 for result in found)
    assert "explain: 32 bytes" in found[3].note  # of eight rows one number of four bytes
    assert "explain: 1024 bytes" in found[5].note


class TestTune:
    def test_a_new_architecture_begins_with_the_rows_that_serve_it(self, tmp_path):
        target = Target.named("sm_100")
        content = tune.content_of(target, tmp_path / "sm_100.json")
        found = read_tuning(text_of(content), "sm_100.json", total=True)
        assert found.arch == "sm_100"
        assert found.device.l2_bytes == target.gpu.l2_bytes
        size = max(row["set"].get("prefetch_bytes", 0) for row in content["forward"])
        assert size == (4 << 20) * 126 // 60, "as far as by the file that serves it now"
        (tmp_path / "sm_100.json").write_text(text_of({**content, "forward": []}))
        assert tune.content_of(target, tmp_path / "sm_100.json")["forward"] == []

    def test_every_point_has_a_kernel(self):
        for of_shape in Selection(dtypes=("float16",), columns=(256, 50257)).sweep():
            for point in of_shape:
                kernel = kernel_of(tune.call(point), point.direction, Target.named("sm_90"))
                # The longest rows of its bucket, which serves rows of so many columns.
                most = {256: 256, 50257: 51200}[point.columns]
                assert point.columns <= kernel.features.columns <= most
                assert kernel.kind == point.direction
