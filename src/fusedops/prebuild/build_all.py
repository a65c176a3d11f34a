# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Build the kernels of recorded calls by several processes, before anything runs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusedops import jit
from fusedops.bind.bind import Bound, bind, floating
from fusedops.declare.declaration import Declaration
from fusedops.declare.text import read
from fusedops.errors import FusedOpsError
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.jit.store import why_not_kept
from fusedops.plan import forward
from fusedops.plan.saved_tensors import (
    RESULT,
    into_name,
    may_start_from_result,
    reads_result,
)
from fusedops.prebuild.recording import Signature
from fusedops.run.gradient import Gradient, described, gradient_of
from fusedops.run.prepare import bound_to_run
from fusedops.schedule.tiling import samples


@dataclass(frozen=True)
class Outcome:
    """The result of building one variant."""

    variant: Variant  # the variant that was to be built
    origin: str | None  # "compiled" or "cache"; None if the build failed
    seconds: float  # the time that the build took, in seconds; 0 if it failed
    #: Why the build failed or the result could not be kept in the cache, or None.
    error: FusedOpsError | None = None
    size: int = 0  # bytes of the files of its entry in the cache


def variants(
    signatures: Iterable[Signature], target: Target, *, backward: bool = True
) -> list[Variant]:
    """List the variants that calls run on a target, each once, but those that multiply.

    Of a loss without logits, whose kernel multiplies, these are none: the losses of blocks that run
    where it cannot are calls of their own.

    Args:
        signatures: The signatures of the calls and of backward passes. A declaration with dropouts
            is listed for training and for evaluation.
        target: The target to list variants for; its device need not be present.
        backward: Whether a call of which no backward pass is among the signatures also gets the
            backward pass that computes every gradient, from those of all results and from that of y
            alone.

    Raises:
        TypeError, ValueError, UnsupportedError: A signature is that of a call that would raise so.
    """
    every = list({str(one): one for one in signatures if not one.of_loss}.values())
    trained = {one.rows for one in every if one.backward}
    found: dict[tuple[object, ...], Variant] = {}
    for one in every:
        of_one = list(_of_gradient(one, target) if one.backward else _of_call(one, target))
        if backward and not one.backward and one.rows not in trained:
            of_one += _of_every_gradient(one, target)
        found.update((variant.key, variant) for variant in of_one)
    return list(found.values())


def of_lengths(values: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """Operands of calls that together need every kernel for rows of up to `most` columns.

    A row of x is its last dimension; tensors whose last size is that of x get the other lengths.
    """
    columns = values["x"].shape[-1]

    def resized(one: Any, length: int) -> Any:
        if not isinstance(one, torch.Tensor) or one.dim() == 0 or one.shape[-1] != columns:
            return one
        return torch.empty((*one.shape[:-1], length), dtype=one.dtype, device=one.device)

    for length in samples(most):
        yield {name: resized(one, length) for name, one in values.items()}


def build_all(
    wanted: Iterable[Variant], processes: int, done: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Build the variants that the cache lacks, in several processes.

    An error in building one variant is noted in its outcome, and the others are still built.

    `done` is called with each outcome as soon as it is known, and outcomes are returned in that
    order.
    """
    outcomes = []

    def note(variant: Variant, result: jit.Artifact | FusedOpsError) -> None:
        if isinstance(result, FusedOpsError):
            outcomes.append(Outcome(variant, None, 0.0, variant.blamed(result)))
        else:
            size = sum(map(len, result.files.values()))
            outcomes.append(Outcome(variant, result.origin, result.seconds, size=size))
        done(outcomes[-1])

    missing = []
    for variant in wanted:
        here = variant.cached()
        if here is None or why_not_kept(here.folder):
            missing.append(variant)
        else:
            note(variant, here)
    if not missing:
        return outcomes
    # Processes, since NVRTC compiles one source at a time in each. Not forked from here: the caller
    # may have threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fusedops.jit"])
    count = min(processes, len(missing))
    with ProcessPoolExecutor(count, context, _enter, (dict(os.environ),)) as pool:
        running = {pool.submit(_build, variant.order): variant for variant in missing}
        for future in as_completed(running):
            note(running[future], _result(future, running[future]))
    return outcomes


def _result(
    future: Future[jit.Artifact | FusedOpsError], variant: Variant
) -> jit.Artifact | FusedOpsError:
    try:
        return future.result()
    except BrokenProcessPool:  # then none that is left has a result
        return FusedOpsError(
            f"{variant.declaration}: its kernel for {variant.arch} was not built: a process that "
            "builds was killed, perhaps for want of memory; try again with fewer --jobs, and what "
            "has been built is found in the cache"
        )


def _enter(environment: dict[str, str]) -> None:
    """Set the environment: a fork server would keep the one in which it was started."""
    os.environ.update(environment)


def _build(order: jit.Order) -> jit.Artifact | FusedOpsError:
    what = f"{order.declaration or order.name}: its kernel for {order.arch}"
    try:
        built = jit.build(**order._asdict())
    except FusedOpsError as error:
        return error
    except (OSError, ValueError) as error:  # such as no room for the compiler's temporary files
        return FusedOpsError(f"{what} was not built: {error}")
    if reason := why_not_kept(built.folder):
        return FusedOpsError(f"{what} was compiled, but could not be kept: {reason}")
    return built


def _of_call(one: Signature, target: Target) -> Iterator[Variant]:
    for bound in _calls(one):
        for keep in (False,) if bound.op.forward_only else (False, True):
            yield forward.describe(bound._replace(keep=keep), target).variant


def _of_every_gradient(one: Signature, target: Target) -> Iterator[Variant]:
    for bound in _calls(one):
        if not bound.op.forward_only:
            wanted = frozenset({"x", *floating(bound.operands)})
            # All results have a gradient, or y alone, as where a stream ends in a last layer.
            alone = bound.op.joining if bound.op.quantized else ()
            for joining in {frozenset(bound.op.joining), frozenset(alone)}:
                gradient = gradient_of(bound, wanted, joining)
                yield from _of_backward(gradient, *described(bound, gradient), target)
                for half in _may_be_halves(bound):
                    yield from _of_halves(bound, half, gradient.joining, target)


def _may_be_halves(bound: Bound) -> Iterator[str]:
    """The operands that lie as x does, as both do that are halves of a product of groups."""
    x, columns = bound.x, bound.x.shape[-1]
    if bound.differentiated.op is not bound.op or x.is_contiguous():
        return
    if x.stride() not in ((2 * columns, 1), (2 * columns, 2)):  # below one another in w, or not
        return
    for name in floating(bound.operands):
        one = bound.operands[name]
        if (one.shape, one.stride(), one.dtype) == (x.shape, x.stride(), x.dtype):
            yield name


def _of_halves(
    bound: Bound, half: str, joining: frozenset[str], target: Target
) -> Iterable[Variant]:
    """The backward pass that writes the gradients of x and of a half to the halves of a tensor."""
    op, into = bound.op, ["x", half]
    wanted = frozenset({"x", *floating(bound.operands)}) - op.undifferentiated
    from_result = may_start_from_result(op) and reads_result(op, bound.dtype, bound.x.dtype)
    gradient = Gradient(op, wanted, joining, from_result=from_result, into=into)
    dy, given, options = described(bound, gradient)
    tensors = {"x": bound.x, **bound.operands}
    given.update((into_name(name), tensors[name]) for name in gradient.into)
    return _of_backward(gradient, dy, given, options, target)


def _of_gradient(one: Signature, target: Target) -> Iterator[Variant]:
    op = read(one.op)
    dy, given, options = one.read()
    from_result = RESULT in given
    wanted = frozenset(one.wanted)
    into = [name for name in wanted if into_name(name) in given]
    gradient = Gradient(op, wanted, frozenset(one.joining), from_result=from_result, into=into)
    for training in _modes(op):
        try:
            found = _of_backward(gradient, dy, given, {**options, **training}, target)
        except KeyError as error:
            raise ValueError(f"not the signature of a backward pass: no {error}: {one}") from None
        yield from found


def _of_backward(
    gradient: Gradient,
    dy: Tensor,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    target: Target,
) -> Iterable[Variant]:
    told = gradient.describe(dy, given, options, target)
    if told is None:
        told = gradient.describe(*gradient.copies(dy, given), options, target)
    return () if told is None else told.variants


def _calls(one: Signature) -> Iterator[Bound]:
    """Bind a recorded call for training and for evaluation; none for an empty x."""
    op = read(one.op)
    x, operands, options = one.read()
    for training in _modes(op):
        bound = bind(op, x, operands, {**options, **training})
        if bound.x.numel() > 0:
            yield bound_to_run(bound)


def _modes(op: Declaration) -> list[dict[str, bool]]:
    return [{"training": True}, {"training": False}] if op.dropouts else [{}]
