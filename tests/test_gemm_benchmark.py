# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The part `gemm` of the benchmarks at small sizes on a CPU; what it measures needs a quiet GPU."""

import functools
import sys
import types
from pathlib import Path

import pytest
import torch
from products import SEVERAL

from fusedops.generate.target import Target
from fusedops.schedule.launch import IMPLEMENTATIONS
from fusedops.tuning.problem import implementation_of_last

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))  # its modules go by short names

import gemm
import product_errors
import run
import scores
import stores
from points import Selection
from rich.console import Console


class TestProducts:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        """Every way runs, at small sizes; the times are not looked at."""

        def seconds(calls):
            for call in calls:
                call()
            return 1e-3

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        monkeypatch.setattr(gemm, "queue_seconds", seconds)
        monkeypatch.setattr(gemm, "sets", lambda size: 1)
        monkeypatch.setattr(gemm, "SIZES", ((8, 24, 16),))
        monkeypatch.setattr(gemm, "BLOCK", (8, 16, 32))
        monkeypatch.setattr(torch, "compile", lambda function, **options: function)
        yield
        torch.set_num_threads(threads)

    @pytest.mark.thorough
    def test_every_row_is_there(self):
        with torch.no_grad():
            rows = list(gemm.measured(Selection(), "cpu"))
        timed = [row for row in rows if row.seconds]
        for dtype in gemm.HALVES:
            own = [row for row in timed if f", {dtype}, " in row.case]
            assert [row.by for row in own].count("fusedops") == len(gemm.STORES) + 1
            assert [row.by for row in own].count("torch.compile, max-autotune") == 2
            assert [row.by for row in own].count(gemm.HARDWARE) == 2
            assert [row.by for row in own].count("torch eager") == len(gemm.STORES) + 1
            assert {row.by for row in own} >= {
                "cuBLASLt's epilogue",
                "fusedops, two layers, compiled",
            }
        assert {row.part for row in rows} == {"gemm"}
        assert len({(row.case, row.by) for row in rows}) == len(rows)
        # Here nothing but two kernels runs, which is said of the others.
        left = [row for row in rows if not row.seconds]
        kernels = IMPLEMENTATIONS[1:]
        assert {row.by for row in left} == {f"fusedops, {name}" for name in kernels}
        assert all("it cannot run this call" in row.note for row in left)
        chosen = [row for row in timed if row.by == "fusedops" and "forward and" not in row.case]
        assert {row.note for row in chosen} == {"by two_kernels"}

    @pytest.mark.thorough
    def test_scores(self, monkeypatch):
        monkeypatch.setattr(scores, "queue_seconds", gemm.queue_seconds)
        monkeypatch.setattr(scores, "sets", gemm.sets)
        monkeypatch.setattr(scores, "SIZES", ((2, 3, 8, 16, 8),))
        monkeypatch.setattr(scores, "LAYERS", ((2, 8, 16, 24),))
        rows = list(scores.measured(Selection(dtypes=("float16",)), "cpu"))
        assert {row.part for row in rows} == {"scores"}
        assert len({(row.case, row.by) for row in rows}) == len(rows)
        timed = [row for row in rows if row.seconds]
        for by in ("fusedops", "torch eager", "torch.compile"):
            # Forward, and forward and backward.
            assert [row.by for row in timed].count(by) == 2 * (len(scores.SCORES) + 1)
        assert {
            row.note for row in timed if "backward" not in row.case and row.by == "fusedops"
        } == {"by two_kernels"}
        assert all("it cannot run this call" in row.note for row in rows if not row.seconds)

    @pytest.mark.parametrize("value", [1.0, -torch.inf])
    def test_infinity_in_the_wrong_place_is_seen(self, value):
        wanted = torch.tensor([1.0, -torch.inf, 2.0]).half()
        result = torch.tensor([1.0, value, value * 2]).half()
        with pytest.raises(ValueError, match=r"wrong in 1 element$"):
            gemm.check(lambda given: result, {}, implementation_of_last(), wanted)

    @pytest.mark.thorough
    def test_a_dtype_is_chosen(self):
        rows = list(gemm.measured(Selection(dtypes=("bfloat16", "float32")), "cpu"))
        assert all(", bfloat16, " in row.case for row in rows)

    @pytest.mark.thorough
    def test_what_is_wrong_is_not_timed(self, monkeypatch):
        """Nor what fails: both are told, and the other ways are timed."""
        given = gemm.Stores._given

        def larger(self, count):
            return [{**each, "w": each["w"] * 30} for each in given(self, count)]

        monkeypatch.setattr(stores, "CAP", 20.0)  # of torch's function alone: ours has been traced
        monkeypatch.setattr(gemm.Stores, "_given", larger)
        store = gemm.STORES["bias, GELU"]
        broken = {**gemm.STORES, "bias, GELU": store._replace(others={"broken": failing})}
        monkeypatch.setattr(gemm, "STORES", broken)
        rows = list(gemm.measured(Selection(dtypes=("float16",)), "cpu"))
        notes = {(row.case.partition(",")[0], row.by): row.note for row in rows if not row.seconds}
        assert "wrong in" in notes["a softcap of one's own", "fusedops"]
        assert "MemoryError: no room" in notes["bias", "broken"]

    @pytest.mark.thorough
    def test_quack_is_measured_where_it_is(self, monkeypatch):
        """What fails or is wrong is told; without the package, or on a CPU, there is no row."""
        functions = {name: store.plain for name, store in gemm.STORES.items() if store.again}
        functions["a softcap of one's own"] = failing
        functions["a gate of one's own"] = lambda x, w, g, u: g + 100
        fake = types.SimpleNamespace(FUNCTIONS=functions)
        monkeypatch.setitem(sys.modules, "quack_gemm", fake)
        monkeypatch.setattr(gemm, "has_quack", lambda device: True)
        rows = list(gemm.measured(Selection(dtypes=("float16",)), "cpu"))
        rows = [row for row in rows if row.by == gemm.QUACK]
        notes = {row.case.partition(", float16")[0]: row.note for row in rows}
        assert set(notes) == set(gemm.STORES)
        assert [row.case.partition(", float16")[0] for row in rows if row.seconds] == ["bias, GELU"]
        assert notes["bias, GELU"] == ""
        assert "QuACK's epilogues have no dropout" in notes["bias, dropout, residual"]
        assert "MemoryError: no room" in notes["a softcap of one's own"]
        assert "wrong in" in notes["a gate of one's own"]

    @pytest.mark.parametrize("there", [False, True])
    def test_quack_needs_its_package_and_a_gpu(self, monkeypatch, there):
        def version():
            if not there:
                raise gemm.SkipError("quack-kernels is not installed")

        monkeypatch.setattr(gemm.PEERS["quack"], "version", version)
        assert gemm.has_quack("cuda") == there
        assert not gemm.has_quack("cpu")

    def test_quack_is_called_with_named_operands(self, monkeypatch):
        """By functions of the accumulator, which are the STOREs' own."""

        def gemm_epilogue(**_options):
            def wrap(function):
                def call(x, w, **operands):
                    return function((x @ w).float(), **operands)

                return call

            return wrap

        quack = {
            "quack": {},
            "quack.activation": {
                "gelu_tanh_approx": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
                "silu": torch.nn.functional.silu,
                "tanh": torch.tanh,
            },
            "quack.epilogue": {},
            "quack.epilogue.frontend": {"gemm_epilogue": gemm_epilogue},
            "quack.epilogue.ops": {"RowVecLoad": str, "TileLoad": str},
        }
        for name, attributes in quack.items():
            module = types.ModuleType(name)
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, "quack_gemm", raising=False)
        given = gemm.Stores((8, 24, 16), "float16", "cpu")._given(1)[0]
        for name, store in gemm.STORES.items():
            if store.again:
                wanted = store.by_torch(store.plain, given)
                gemm.check_values(
                    lambda _, s=store, n=name: gemm.by_quack(n, s, given).half(), given, wanted
                )
        assert sys.modules.pop("quack_gemm").CAP == stores.CAP

    @pytest.mark.thorough
    def test_a_job_that_fails_is_told(self, monkeypatch):
        monkeypatch.setattr(gemm.Stores, "prepare", lambda self: failing())
        rows = list(gemm.measured(Selection(dtypes=("float16",)), "cpu"))
        assert [row.note for row in rows if row.by == "all"] == [
            "not measured: MemoryError: no room"
        ]

    def test_kernels_are_built_ahead(self, monkeypatch):
        """Those of every implementation on a GPU, each once: in one list, as buckets share them."""
        built = []

        def build_all(wanted, processes, done):
            for one in wanted:
                built.append(one)
                done(None)

        said = []
        monkeypatch.setattr(gemm, "build_all", build_all)
        monkeypatch.setattr(gemm, "SIZES", ((16384, 1024, 1024), (512, 4096, 4096)))
        monkeypatch.setattr(gemm.Target, "of", classmethod(lambda cls, d: Target.named("sm_90")))
        count = gemm.build(gemm.HALVES, torch.device("cuda", 0), said.append)
        assert len(built) == count == len({one.key for one in built})
        assert said[-1] == f"{count} of {count} kernels"
        products = [one for one in built if one.entry == "product"]
        tiles = {one.tile.name for one in products}
        assert tiles == {*SEVERAL}
        # All tilings of each store in each dtype; a dropout has one more, for evaluation. Some
        # stores have one more with a GPU's tanh, of the tilings that are chosen at these sizes.
        hardware = [store for store in gemm.STORES.values() if store.hardware is not None]
        every = len(SEVERAL) * 2 * (len(gemm.STORES) + 1)
        assert len(products) == every + 2 * 2 * len(hardware)


def failing(*_arguments):
    raise MemoryError("no room")


@pytest.mark.thorough
def test_errors_of_products(monkeypatch, tmp_path):
    """Two kernels and torch round the product; a float32 chain is rounded at its end alone."""
    monkeypatch.setattr(product_errors, "SIZES", ((8, 24, 16), (64, 24, 16), (8, 16, 40)))
    monkeypatch.setattr(product_errors, "ROWS", 64)
    part = functools.partial(product_errors.measured, device="cpu")
    monkeypatch.setitem(run.PARTS, "product_errors", part)
    console = Console(record=True, width=200)
    found, failed = run.measure(["product_errors"], Selection(), tmp_path / "mine.csv", console)
    assert not failed
    rows = found["product_errors"]
    stores_of = [name for name, store in stores.STORES.items() if store.again]
    # Each size once, however many rows it has there; and no kernel that this device has not.
    assert len({(row["op"], row["columns"], row["dtype"]) for row in rows}) == 4 * len(stores_of)
    ways = {row["by"] for row in rows}
    assert {"fusedops, two_kernels", "torch eager", "float32 chain"} <= ways
    assert not ways & {"fusedops, Together", "fusedops, InTurns"}
    for row in rows:
        eps = torch.finfo(getattr(torch, row["dtype"])).eps
        share = float(row["rms of the row's largest"]) / eps
        if row["by"] != "cuBLASLt's epilogue":  # on a CPU it is another GELU
            assert 0.02 < share < (0.25 if row["by"] == "float32 chain" else 0.5), row
    console.print(product_errors.digest(rows))
    assert "torch eager" in console.export_text()
    assert (tmp_path / "errors-mine.csv").exists()
