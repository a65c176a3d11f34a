# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Traits of functors: a class of the user's own saves, draws and rounds as the library's do."""

import ast
import dataclasses
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from cases import randn, same_bits

import fusedops as fo
from fusedops import functors
from fusedops.functors import Functor, Operand, Reads, Role, Stream, check_name
from fusedops.reference.error_bound import expected
from fusedops.testing import check

PACKAGE = Path(fo.__file__).parent


@dataclasses.dataclass(frozen=True)
class ScaledStream(Functor):
    """``x * scale``, saved in the dtype of x; the chain goes on with what was saved."""

    scale: str
    stream: str
    like: str | None = None
    headers: ClassVar[tuple[str, ...]] = ("row/view.cuh",)
    definition: ClassVar[str] = """namespace fusedops {
template <class Factor, class Stream, class Upstream>
struct ScaledStream {
  Factor factor;
  Stream stream;
  Upstream upstream;
  static constexpr bool kSaves = true;
  static constexpr bool kStreamGradient = !detail::IsSame<Upstream, Absent>::value;
  static constexpr bool kNeedsInput = true;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto by = factor.template fetch<N, Compute>(row, col);
    for (int i = 0; i < N; ++i) v[i] *= by[i];
    stream.write(v, row, col);
    stream.round(v);
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void reread(Compute (&v)[N], const Row& row, int64_t col) const {
    stream.read_again(v, row, col);
  }
  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    if constexpr (kStreamGradient) {
      const auto joining = upstream.template fetch<N, Compute>(row, col);
      for (int i = 0; i < N; ++i) g[i] += joining[i];
    }
    const auto by = factor.template fetch<N, Compute>(row, col);
    Compute of_factor[N];
    for (int i = 0; i < N; ++i) {
      of_factor[i] = g[i] * in[i];
      g[i] *= by[i];
    }
    sink.template add<0>(of_factor, row, col);
  }
};
}  // namespace fusedops
"""

    def __post_init__(self):
        check_name(self, "scale", self.scale)

    @property
    def saves(self):
        return Stream(self.stream, like=self.like)

    def operands(self):
        return (Operand(self.scale, Role.VALUE),)

    def apply(self, x, chain):
        return chain.save(self.stream, x * chain.value(self.scale))

    def reads(self, wanted):
        return Reads(self.scale in wanted, (self.scale,))

    def emit(self, writer):
        members = (
            writer.operand(self.scale),
            writer.output(self.stream),
            writer.output_gradient(self.stream),
        )
        return f"ScaledStream<{', '.join(members)}>"


@dataclasses.dataclass(frozen=True)
class Flip(Functor):
    """Turns the sign of each element with probability p."""

    p: str
    headers: ClassVar[tuple[str, ...]] = ("functor/dropout.cuh",)
    definition: ClassVar[str] = """namespace fusedops {
template <class Draw>
struct Flip {
  Draw draw;
  static constexpr bool kNeedsInput = false;

  FUSEDOPS_HD auto drawn() const { return Flip<decltype(draw.drawn())>{draw.drawn()}; }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    Compute kept[N];
    for (int i = 0; i < N; ++i) kept[i] = 1;
    draw(kept, row, col);
    for (int i = 0; i < N; ++i) v[i] = kept[i] == 0 ? -v[i] : v[i];
  }
  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    (*this)(g, row, col);
  }
};
}  // namespace fusedops
"""

    def __post_init__(self):
        check_name(self, "p", self.p)

    @property
    def draws(self):
        return self.p

    def operands(self):
        return (Operand(self.p, Role.PROBABILITY),)

    def apply(self, x, chain):
        kept, _ = chain.dropout(self)
        return torch.where(kept, x, -x)

    def reads(self, wanted):
        return Reads(False, (self.p,))

    def emit(self, writer):
        return f"Flip<{writer.dropout(self.p)}>"


def norm(like=None):
    return fo.LayerNorm(
        load=[ScaledStream("s", "z", like), fo.Bias("b")], store=[fo.Affine("g", None)]
    )


def norm_operands(device, dtype=torch.float32):
    return {
        "s": randn(3, 1, dtype=torch.float64 if dtype is torch.float64 else dtype, device=device),
        "b": randn(24, dtype=dtype, device=device, seed=1),
        "g": randn(24, dtype=dtype, device=device, seed=2),
    }


class TestSaves:
    @pytest.mark.thorough
    def test_values_and_gradients(self, device):
        report = check(norm(), randn(3, 24, device=device, seed=3), **norm_operands(device))
        assert report.passed

    @pytest.mark.parametrize("like", [None, "s"])
    def test_the_stream_has_the_dtype_that_it_says(self, like, device):
        x = randn(3, 24, dtype=torch.float16, device=device)
        operands = norm_operands(device)
        op = norm(like)
        y, z = op(x, **operands)
        assert z.dtype == (torch.float16 if like is None else torch.float32)
        assert op.unfused(x, **operands).z.dtype == z.dtype
        want = (x.float() * operands["s"]).to(z.dtype)
        torch.testing.assert_close(z, want)
        assert y.dtype == torch.float16

    def test_x_is_kept_for_the_gradient_that_reads_it_alone(self, device):
        def kept(*wanted):
            given = {"x": randn(3, 24, device=device, seed=3), **norm_operands(device)}
            leaves = {k: v.requires_grad_(k in wanted) for k, v in given.items()}
            found = []
            hooks = torch.autograd.graph.saved_tensors_hooks(
                lambda t: found.append(t.data_ptr()), lambda none: none
            )
            x = leaves.pop("x")
            with hooks:
                norm()(x, **leaves)
            return x.data_ptr() in found

        assert not kept("x")
        assert kept("s")

    def test_explain_names_it(self, device):
        x = randn(3, 24, device=device).requires_grad_()
        told = norm().explain(x, **norm_operands(device))
        assert "z" in told.outputs
        assert "z" in [one.name for one in told.kept]

    @pytest.mark.thorough
    def test_compiled(self, device):
        x, operands = randn(3, 24, device=device), norm_operands(device)
        op = norm()
        torch._dynamo.reset()
        got = torch.compile(lambda x: op(x, **operands), fullgraph=True, backend="eager")(x)
        assert all(map(same_bits, got, op(x, **operands)))

    def test_not_in_a_store(self):
        with pytest.raises(ValueError, match="cannot save in store"):
            fo.LayerNorm(store=[ScaledStream("s", "z")])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("s", "_z"), "must neither begin with an underscore"),
            (("s", "y"), "choose another"),
            (("s", "z", "other"), "none of its operands"),
        ],
    )
    def test_what_cannot_be_saved(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            fo.LayerNorm(load=[ScaledStream(*arguments)])


class TestDraws:
    @pytest.mark.thorough
    def test_values_and_gradients(self, device):
        op = fo.LayerNorm(load=[fo.Dropout("q"), Flip("p")])
        x = randn(5, 24, device=device)
        report = check(op, x, p=0.25, q=0.5)
        assert "another draw" in [one.case for one in report.compared]

    def test_each_has_its_own_part_of_the_stream(self, device):
        op = fo.LayerNorm(store=[Flip("p"), Flip("p")])
        x = randn(5, 24, device=device)
        y = op(x, p=0.5, generator=(1, 0))
        assert same_bits(y, op(x, p=0.5, generator=(1, 0)))
        flipped = [~op.dropout_mask(x.shape, 1, 0, 0.5, slot=n).to(device) for n in (0, 1)]
        plain = fo.LayerNorm()(x)
        torch.testing.assert_close(y, torch.where(flipped[0] ^ flipped[1], -plain, plain))

    @pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 0.5, "training": False}], ids=str)
    def test_what_changes_nothing_is_left_out(self, options, device):
        op = fo.LayerNorm(store=[Flip("p")])
        x = randn(5, 24, device=device)
        assert same_bits(op(x, **options), fo.LayerNorm()(x))
        told = op.explain(x, **options)
        assert told.left_out == op.store
        assert not told.dropouts

    @pytest.mark.thorough
    def test_a_draw_in_memory(self, device):
        """As a captured graph has it: the struct is made of a draw that is read first."""
        op = fo.LayerNorm(store=[fo.Dropout("q"), Flip("p")])
        x = randn(5, 24, device=device)
        draw = torch.tensor([7, 3], device=device)
        given = {"p": 0.5, "q": 0.25}
        assert same_bits(op(x, **given, generator=draw), op(x, **given, generator=(7, 3)))

    def test_explain_names_it(self, device):
        op = fo.LayerNorm(store=[Flip("p")])
        told = op.explain(randn(5, 24, device=device), p=0.5)
        assert "Flip(p='p') in STORE: drops 32768 in 65536" in told.dropouts[0]

    @pytest.mark.thorough
    def test_compiled(self, device):
        op = fo.LayerNorm(store=[Flip("p")])
        x = randn(5, 24, device=device)
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: op(x, p=0.5, generator=(1, 0)), backend="eager")
        assert same_bits(compiled(x), op(x, p=0.5, generator=(1, 0)))

    @pytest.mark.parametrize("draws", [None, "q"])
    def test_what_says_otherwise_is_refused(self, draws):
        class Confused(Flip):
            @property
            def draws(self):
                return draws

        with pytest.raises(ValueError, match=r"Role.PROBABILITY are \['p'\]"):
            fo.LayerNorm(store=[Confused("p")])


@dataclasses.dataclass(frozen=True)
class Grid(Functor):
    """Rounds to eighths, beside which a value may fall on either side."""

    headers: ClassVar[tuple[str, ...]] = ("core/pointwise.cuh",)
    rounds: ClassVar[bool] = True
    differentiable: ClassVar[bool] = False
    definition: ClassVar[str] = """namespace fusedops {
struct Grid {
  uint64_t unused;
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t) const {
    for (int i = 0; i < N; ++i) v[i] = pointwise::rint(v[i] * 8) / 8;
  }
};
}  // namespace fusedops
"""

    def apply(self, x, chain):
        return torch.round(x * 8) / 8

    def emit(self, writer):
        writer.constant(0)
        return "Grid"


class Uncertain(Grid):
    """The same, but does not say that it rounds."""

    rounds: ClassVar[bool] = False


def allowed(op, x, operands):
    """The least error that any element of y is allowed."""
    return expected(op.bind(x, operands), {}, {})["y"].error.min().item()


@pytest.mark.thorough
def test_what_rounds_may_fall_on_either_side(device):
    x = randn(10, 24, device=device)
    assert check(fo.Softmax(load=[Grid()]), x).passed
    ties = (torch.arange(240, device=device).reshape(10, 24) % 24 + 0.5) / 8
    rounds, does_not_say = (
        allowed(fo.Softmax(load=[kind()]), ties, {}) for kind in (Grid, Uncertain)
    )
    assert rounds > 1000 * does_not_say


@dataclasses.dataclass(frozen=True)
class Around(functors.Affine):
    """An affine step that keeps its product to itself."""

    def intermediates(self, x, chain):
        return ()


def test_what_cancels_is_as_uncertain_as_its_terms(device):
    # Each norm of this row is the row itself, exactly: the chain's own error plays no part.
    row = 1 - 2.0 * (torch.arange(24, device=device) % 2)
    operands = {"gamma": torch.full((24,), 1e4, device=device), "beta": -1e4 * row}
    x = row.expand(5, 24).clone()
    product = torch.finfo(torch.float32).eps * 1e4
    says, does_not_say = (
        allowed(fo.LayerNorm(store=[kind("gamma", "beta")], eps=0.0), x, operands)
        for kind in (fo.Affine, Around)
    )
    assert does_not_say < 0.9 * product < says


class Gain(fo.Scale):
    """A scale for each channel."""

    @property
    def channel_operands(self):
        return (self.scale,)


def test_an_operand_of_channels(device):
    op = fo.GroupNorm(2, store=[Gain("g")])
    x, g = randn(3, 4, 5, device=device), randn(4, device=device, seed=1)
    want = torch.nn.functional.group_norm(x, 2, weight=g)
    torch.testing.assert_close(op(x, g=g), want)
    plain = fo.GroupNorm(2, store=[fo.Scale("g")])
    torch.testing.assert_close(plain(x, g=g[:, None]), want)


def test_the_old_name_of_a_method_says_the_new_one():
    with pytest.raises(TypeError, match=r"Old: spell\(write\) is called emit\(writer\) now"):

        class Old(Functor):
            def spell(self, write):
                return "Old"


def concrete():
    """The names of the library's functor classes."""
    kinds = {name: getattr(functors, name) for name in functors.__all__}
    return {
        name
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, Functor) and kind is not Functor
    }


def names(node):
    """The last parts of the names in an expression."""
    for one in ast.walk(node):
        if isinstance(one, (ast.Name, ast.Attribute)):
            yield one.id if isinstance(one, ast.Name) else one.attr


def test_no_code_asks_for_the_class_of_a_functor():
    """What the package has to know of a functor is a trait, so that all may have it."""
    known = concrete()
    assert len(known) > 10
    asked = []
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE)
        # `nn` checks what its own arguments are: `causal` is a bool or a fusedops.Causal.
        if place.parts[0] in ("functors", "nn"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            call = isinstance(node, ast.Call) and {"isinstance", "issubclass"} & {*names(node.func)}
            compared = isinstance(node, ast.Compare)  # type(f) is Scale
            if (call or compared or isinstance(node, ast.MatchClass)) and known & {*names(node)}:
                asked.append(f"{place}:{node.lineno}")
    assert not asked
