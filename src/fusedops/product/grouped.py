# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""GroupedLinear: a linear layer of many weights, each for a group of rows, and a STORE after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Delegate, Plan
from fusedops.declare.interactive import CallSignature
from fusedops.errors import check_flag, shortened
from fusedops.explain.report import ProductExplanation
from fusedops.functors import Functor, Role
from fusedops.generate.target import Target
from fusedops.jit import env
from fusedops.plan.planned import Planned
from fusedops.plan.planner import plan
from fusedops.product.choice import Choice
from fusedops.product.declaration import TAKEN
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import (
    as_factor,
    check_factors,
    factor_dtype,
    wants_gradient,
    wrong_shape,
)
from fusedops.product.group_checks import OFFSETS, check_groups, check_offsets
from fusedops.product.grouped_kernel import GroupedProduct, bind_groups, chosen_for_groups
from fusedops.product.grouped_product import by_torch, ends_of, grouped_product, rows_of_groups
from fusedops.product.grouped_report import explain_groups
from fusedops.product.grouped_training import GroupedTraining
from fusedops.product.product_kernel import build_or_warn
from fusedops.product.single import SingleProduct
from fusedops.schedule.architectures import ProductTiling

__all__ = ["GroupedLinear", "SettledGroups"]


class GroupedLinear(SingleProduct):
    """``y[t] = store(x[t] @ w[g(t)].T)``: a linear layer of each group of rows, as of experts.

    A call is ``op(x, w, offsets=..., **operands, **options)``: x of shape (T, K), whose rows are
    sorted by group, and w of shape (E, N, K), one weight as of `torch.nn.Linear` for each group.
    offsets are integers on x's device: of shape (E + 1,) where each group begins and the last one
    ends, or of shape (E,) the number of rows of each group. Nothing is read on the host, so groups
    may have any sizes, none among them, in a CUDA graph too. Every row is in a group: rows before
    the first offset are in the first group, and rows after the last one in the last group. So give
    padding rows zeros, and ignore what they give. Both factors are float16, bfloat16, float32 or
    float64, of one dtype unless torch.autocast is on. y has shape (T, N) and the dtype of the
    product, unless ``dtype=`` says another.

    Operands broadcast against (T, N), as those of a `Map` against its x: of shape (N,) by column,
    (T, 1) by row (the router's weight as a `Scale`), (T, N) by element. Those that `by_expert`
    names have a first dimension of E, of shapes (E, N), (E, 1) or (E,) (one number for each group),
    and each row takes the entry of its group; the gradient is the sum of the group's rows in a
    fixed order. Dropouts draw by rows of x.

    With ``halves="up"`` the STORE gets the first half of the product's columns as x, and the second
    half as its operand up; y has shape (T, N / 2). So ``[Gate("up", of="value")]`` is SwiGLU, of
    one product by weights of gate and up below one another. ``interleaved=True`` says that gate and
    up are neighbours in w's rows: x is the even columns, and up the odd ones.

    One kernel multiplies 16-bit factors on sm_90 and runs the functors, and writes the product too
    where its gradient reads it; one without functors makes the gradient of x
    (docs/explanation/products.md has the conditions, and `explain` the reason). Else the product is
    torch's `grouped_mm`, and one kernel of the functors follows. Of float64, under vmap or jvp, or
    where torch has no grouped product, there is a product for each group, and the host reads the
    offsets; that of float16 and float32 on a GPU reads them in torch. One kernel, and products of
    bfloat16 on a GPU, can be captured. torch copies w and x unless their rows begin at multiples of
    16 bytes.

    Args:
        store: The functors applied to the product, in order; none by default.
        by_expert: The names of the operands that have an entry for each group.
        halves: The operand of the STORE that is the second half of the product; None for none.
        interleaved: Whether columns of both halves alternate; gate weights that lie so need no
            copy, but halves below one another are read with fewer instructions.

    Raises:
        TypeError: store holds something that is no functor, or an argument is unknown. A call: a
            factor is no floating tensor, or they have two dtypes, or offsets are no integers.
        ValueError: A functor has no meaning in a STORE, or by_expert or halves names no operand of
            it. A call: a shape or a device does not fit, or, on a CPU and not in compiled code,
            offsets decrease or leave x.

    >>> import torch, fusedops as fo
    >>> op = fo.GroupedLinear(store=[fo.Bias("b"), fo.Scale("router")], by_expert=["b"])
    >>> x, w = torch.ones(3, 2), torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]]])
    >>> b, router = torch.tensor([[0.5], [0.25]]), torch.tensor([[1.0], [2.0], [1.0]])
    >>> op(x, w, offsets=torch.tensor([0, 2, 3]), b=b, router=router)
    tensor([[2.5000],
            [5.0000],
            [4.2500]])
    >>> swiglu = fo.GroupedLinear(store=[fo.Gate("up", of="value")], halves="up")
    >>> swiglu(x, torch.ones(2, 2, 2), offsets=torch.tensor([3, 0])).shape
    torch.Size([3, 1])
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "w")
    formula: ClassVar[str] = "x[group] @ w[group].T"
    __signature__ = CallSignature(inputs, (OFFSETS, *TAKEN))

    def __init__(
        self,
        store: Iterable[Functor] = (),
        by_expert: Iterable[str] = (),
        halves: str | None = None,
        interleaved: bool = False,
    ) -> None:
        if not isinstance(by_expert, Iterable):
            raise TypeError(
                f"{self.title}: by_expert must hold names of operands, got {shortened(by_expert)}"
            )
        check_flag(self.title, "interleaved", interleaved)
        names = (by_expert,) if isinstance(by_expert, str) else tuple(by_expert)
        said = {"by_expert": names, "halves": halves, "interleaved": interleaved}
        self.by_expert, self.halves, self.interleaved = names, halves, interleaved
        super().__init__(store, **{key: one for key, one in said.items() if one})
        roles = {one.name: one.role for one in self.operands}
        known = [key for key, role in roles.items() if role is Role.VALUE]
        asked = [("by_expert", name) for name in names]
        if halves is not None:
            asked.append(("halves", halves))
        elif interleaved:
            raise ValueError(f"{self.title}: interleaved says how halves lie, and there are none")
        for key, name in asked:
            if name not in known:
                raise ValueError(
                    f"{self.title}: {key} names {name!r}, which is no operand of floating numbers; "
                    f"the STORE has {', '.join(map(repr, known)) or 'none'}"
                )
        if halves in names:
            raise ValueError(
                f"{self.title}: {halves!r} is a half of the product, so by_expert cannot name it"
            )
        if OFFSETS in self.slots:
            raise ValueError(
                f"{self.title}: an operand cannot be named {OFFSETS!r}, by which a call gives the "
                "groups; choose another name"
            )
        slots = [name for name in self.slots if name != halves]
        self.slots = {name: at for at, name in enumerate((OFFSETS, *slots), 1)}
        self._able = False  # by the kernel of other products

    def called(self, epilogue: Epilogue) -> None:
        """Run calls by this epilogue, whose op's name errors and profilers give."""
        self.epilogue = epilogue
        several = epilogue.result_type if len(epilogue.outputs) > 1 else None
        kinds = [kind for kind in epilogue.kinds if kind[0] != self.halves]
        kinds.append((OFFSETS, _runtime.SLOT_TENSOR))
        self.dispatch(kinds, several, epilogue.label)
        names = [name for name, _ in kinds]
        self._numbers = {name: at for at, name in enumerate((*names, "w"), 1)}
        self.with_gradients = GroupedTraining(self, [*kinds, ("w", _runtime.SLOT_TENSOR)])

    def check(self, first: Any, second: Any) -> None:
        """Raise TypeError or ValueError for factors that do not fit."""
        check_factors(self.name, self.inputs, (first, second))
        if first.dim() != 2:
            cure = "rows of all batches are one dimension, sorted by group: x.flatten(0, -2)"
            raise wrong_shape(self.name, "x", first, "(T, K)", cure)
        columns = first.shape[1]
        if second.dim() != 3 or second.shape[2] != columns or not second.shape[0]:
            cure = "w has one weight for each group, each as of torch.nn.Linear"
            if second.dim() == 3 and second.shape[1] == columns:
                cure = "pass w.mT: the rows of each weight are the outputs, as in torch.nn.Linear"
            elif second.dim() == 2:
                cure = "a single weight for all rows is that of Linear"
            wanted = f"(E, N, {columns}) for x of shape {tuple(first.shape)}"
            raise wrong_shape(self.name, "w", second, wanted, cure)

    def shape(self, first: Tensor, second: Tensor) -> tuple[int, ...]:
        """The shape of the product of checked factors."""
        return (first.shape[0], second.shape[1])

    def implementation(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """What runs all calls like this one, whose factors have been checked; or its result."""
        check_groups(self, first, second, arguments)
        if not first.is_cuda:
            return Delegate(self._run_checked)
        if wants_gradient((first, second, *arguments.values())):
            return Delegate(self.with_gradients.run)
        tiling = self.chosen(first, second, arguments).tiling
        if tiling is None:
            if env.record_file() is not None:  # what runs it then is kept no longer
                return self.run_apart(first, second, **arguments)
            return Delegate(self.run_apart)
        dtype = factor_dtype(first)
        if first.dtype is not dtype or second.dtype is not dtype:
            return Delegate(self._run_cast)
        return self.plan_of(first, second, arguments, tiling) or Delegate(self.run_apart)

    def plan_of(
        self,
        first: Tensor,
        second: Tensor,
        arguments: dict[str, Any],
        tiling: ProductTiling,
        keeps: bool = False,
    ) -> Plan | None:
        """The plan of one kernel; None if it cannot run the call or cannot be had."""
        try:
            planned = self.planned(first, second, arguments, tiling, keeps=keeps)
        except (TypeError, ValueError):
            return None  # the Map says what is wrong, in the shape that the call knows
        if planned is None:
            return None
        made = build_or_warn(planned, self.declaration)
        self.available = made is not None
        return made

    def planned(
        self,
        first: Tensor,
        second: Tensor,
        arguments: dict[str, Any],
        tiling: ProductTiling,
        target: Target | None = None,
        *,
        keeps: bool = False,
    ) -> Planned | None:
        """A call, whose factors are of one dtype, as one kernel; None where none can run it.

        `keeps`: the product is the last output.
        """
        others = {**arguments}
        offsets = others.pop(OFFSETS)
        bound = bind_groups(self.epilogue, first, second, others, self.by_expert, self.halves)
        if bound is None:
            return None
        given = bound, first, second, offsets, self._numbers, self.halves, self.interleaved
        one = GroupedProduct(*given, tiling, keeps=keeps)
        return plan(one, target)

    def chosen(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any], keeps: bool = False
    ) -> Choice:
        """How a call, whose product may be kept, is run, as far as sizes and dtypes decide it."""
        if not self.available:
            return Choice(None, "one kernel for both could not be had, as a warning said")
        if env.record_file() is not None:
            return Choice(None, "calls are recorded, and what is built ahead is the Map's kernel")
        beside, target = 1 if self.halves is None else 2, Target.of(first.device)
        options = beside, target, factor_dtype(first), keeps
        return chosen_for_groups(self.epilogue, first, second, arguments, *options)

    def run(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked, in code that torch compiles, or in a mode."""
        check_groups(self, first, second, arguments)
        return self.run_apart(first, second, **arguments)

    def run_unfused(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked as torch operations."""
        check_groups(self, first, second, arguments)
        check_offsets(self.name, arguments[OFFSETS], first.shape[0], second.shape[0])
        return self.run_apart(first, second, way="unfused", **arguments)

    def explain(
        self, first: Tensor | None = None, second: Tensor | None = None, /, **arguments: Any
    ) -> ProductExplanation:
        """Say what a call with these arguments would run and why, without running it.

        Returns a `ProductExplanation`; print it.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a call.
        """
        first, second = self.given((first, second), arguments)
        check_groups(self, first, second, arguments)
        check_offsets(self.name, arguments[OFFSETS], first.shape[0], second.shape[0])
        choice = self.choice(first, second, arguments)
        del arguments[OFFSETS]
        return explain_groups(self, self.by_expert, first, second, arguments, choice)

    def choice(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Choice:
        """How a call is run, and why, strides and alignment included; nothing is built."""
        dtype = factor_dtype(first)
        if not by_torch(dtype):
            why = f"of {dtype} there is a product for each group, whose ends the host reads"
            return Choice(None, why)
        keeps = self.with_gradients.reads_product(first, second, arguments)
        choice = self.chosen(first, second, arguments, keeps)
        if choice.tiling is None:
            return choice
        if first.dtype is not dtype:
            first = torch.empty_like(first, dtype=dtype)
        if second.dtype is not dtype:  # only its layout is looked at
            second = torch.empty_like(second, dtype=dtype, device="meta")
        if self.planned(first, second, arguments, choice.tiling, keeps=keeps) is not None:
            return choice
        return Choice(
            None,
            "one kernel for both leaves out no operand, draws nothing and takes no out=, and reads "
            "x and w by bulk copies, from rows that begin at multiples of 16 bytes, which these do "
            "not allow",
        )

    def _run_checked(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
        """Run a call on a CPU, where it costs little to look at the offsets."""
        check_offsets(self.name, arguments[OFFSETS], first.shape[0], second.shape[0])
        trains = wants_gradient((first, second, *arguments.values()))
        return (self.with_gradients.run if trains else self.run_apart)(first, second, **arguments)

    def run_apart(
        self, first: Tensor, second: Tensor, /, way: str = "__call__", **arguments: Any
    ) -> Any:
        """Run a call by torch's product and a kernel of the functors, or another way of these."""
        dtype, rows = factor_dtype(first), first.shape[0]
        ends = ends_of(arguments.pop(OFFSETS), rows, second.shape[0])
        unfused = way == "unfused"
        z = grouped_product(first.to(dtype), as_factor(second, dtype), ends, unfused=unfused)
        z, arguments = self.read_by_store(z, self.by_row(arguments, ends, rows))
        if self.alone(first, arguments):
            return z
        return self.run_store(self.epilogue, z, arguments, way)

    def by_row(self, arguments: dict[str, Any], ends: Tensor, rows: int) -> dict[str, Any]:
        """The arguments with an entry for each row in place of one for each group."""
        found = {**arguments}
        for name in self.by_expert:
            if isinstance(table := arguments.get(name), Tensor):
                found[name] = rows_of_groups(table, ends, rows)
        return found

    def read_by_store(self, z: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """What the STORE gets of a product as its x, and its operands."""
        if self.halves is None:
            return z, arguments
        if self.interleaved:
            value, other = torch.unflatten(z, 1, (z.shape[1] // 2, 2)).unbind(2)
        else:
            value, other = z.chunk(2, 1)
        return value, {**arguments, self.halves: other}

    @property
    def of_product(self) -> tuple[str, ...]:
        """The operands of the STORE that are parts of the product."""
        return () if self.halves is None else (self.halves,)

    def over_groups(
        self, first: Any, second: Any, arguments: dict[str, Any]
    ) -> tuple[SettledGroups, tuple[Tensor, Tensor], dict[str, Any]]:
        """The call as one whose groups are known: its op, factors, and operands by row or column.

        Of a product with halves it is that of the first half, and the second one is an operand.

        Raises:
            TypeError, ValueError: An argument does not fit.
        """
        first, second = self.given((first, second), arguments)
        arguments = {**arguments}
        check_groups(self, first, second, arguments)
        ends = ends_of(arguments.pop(OFFSETS), first.shape[0], second.shape[0])
        with torch.no_grad():
            arguments = self.by_row(arguments, ends, first.shape[0])
        if self.halves is not None:
            z = grouped_product(first.detach(), second.detach(), ends, unfused=True)
            arguments[self.halves] = self.read_by_store(z, {})[1][self.halves]
            rows = second.mT  # whose columns the STORE divides as those of the product
            second = torch.stack([self.read_by_store(one, {})[0].mT for one in rows])
        return SettledGroups(self.store, ends), (first, second), arguments


class SettledGroups(SingleProduct):
    """A `GroupedLinear` whose groups are part of the op, which tests compare with float64.

    Args:
        store: The functors after the product.
        ends: Where the groups end (`grouped_product.ends_of`); fewer rows end the last ones early.
    """

    inputs = GroupedLinear.inputs
    formula = GroupedLinear.formula
    check = GroupedLinear.check
    shape = GroupedLinear.shape

    def __init__(self, store: Iterable[Functor], ends: Tensor) -> None:
        super().__init__(store)
        self._ends = ends
        self._able = False

    def product(self, first: Tensor, second: Tensor, operand: Tensor | None = None, /) -> Tensor:
        """The product, by torch."""
        rows = first.shape[0]
        begins = self._ends.new_zeros(1)
        ends = ends_of(torch.cat([begins, self._ends.clamp(max=rows)]), rows, len(self._ends))
        return grouped_product(first, second, ends, unfused=True)
