# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled runtime (csrc/): finds the plan for these tensors and launches it."""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar

import torch

_View = TypeVar("_View", bound=tuple[Any, ...])
_Part = TypeVar("_Part", bound=tuple[Any, ...])
_Sharing = TypeVar("_Sharing", bound=tuple[Any, ...])

class DeviceProperties(TypedDict):
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_per_block_optin: int
    threads_per_multiprocessor: int
    l2_bytes: int
    registers_per_block: int

class Kernel:
    """A loaded kernel."""

    @property
    def symbol(self) -> str: ...

def load_cuda(image: bytes, symbol: str, waits: bool = False) -> Kernel:
    """Load a kernel from the bytes of a cubin; RuntimeError if the driver refuses.

    `waits`: it waits for the kernels before it by itself, as core/dependency.cuh says.
    """

def load_host(path: str | bytes, symbol: str) -> Kernel:
    """Load ``void symbol(const void* words, int64_t row_begin, int64_t row_end)``."""

# The kinds of a patch: what rewrites a word of the kernel's argument at each call.
POINTER: int  # the data of slot `source`: 0 is x, i the i-th operand
OUTPUT: int  # the data of output `source`
FLOAT32: int  # the number in slot `source`, in the lower half of the word; the upper half stays
FLOAT64: int
INT64: int
THRESHOLD: int  # of the probability in the slot: round(p * 65536) in 1..65535, 65536 for p = 1
KEEP_SCALE32: int  # 65536 / (65536 - threshold), 0 for p = 1; 32-bit kinds as FLOAT32
KEEP_SCALE64: int
SEED: int  # `source` unused
OFFSET: int  # of the draw, plus `source`
DRAW: int  # the address of a draw that lies in memory; `source` unused
TENSOR_MAP: int  # sixteen words: of the matrix in the slot, which they describe (csrc/stage.h)

# A launch: kernel, words, patches, rows, grain, grid, block, shared, as Plan has them.
Stage: TypeAlias = tuple[Kernel | None, bytes, list[tuple[int, int, int]], int, int, int, int, int]

class Reason(str, enum.Enum):
    """Why a call is left to Python; csrc/gate.h says what each means."""

    MODE = "mode"
    FUNCTORCH = "functorch"
    DUAL = "dual"
    TRACING = "tracing"
    ARGUMENTS = "arguments"
    SUBCLASS = "subclass"
    LAYOUT = "layout"
    DEVICE = "device"
    NEG = "neg"
    CONJ = "conj"
    GRAD = "grad"
    STORAGE = "storage"
    OVERLAP = "overlap"
    MISS = "miss"
    CAPTURE = "capture"

# What a slot may be given, one bit each.
SLOT_PROBABILITY: int  # a dropout's probability
SLOT_NUMBER: int
SLOT_TENSOR: int
SLOT_DESCRIBED: int  # the description ``(dtype, shape)`` of a tensor that is not there

class Plan:
    """All that is known of a call before its pointers and numbers are.

    Args:
        kernel: What to launch; None if there are no rows.
        words: The kernel's only argument, at most 4096 bytes, whole words of 8.
        patches: ``(word, kind, source)`` for each word that a call rewrites.
        outputs: ``(dlpack_code, bits, shape)`` for each output, at most 64.
        rows: How many; 0 launches nothing.
        grain: On the host, how many rows a thread takes at a time.
        grid: Blocks.
        block: Threads a block.
        shared: Bytes of dynamic shared memory.
        draws: How many dropouts draw; 0 leaves the generator alone.
        info: Anything; readable as ``plan.info``.
        then: Further launches, each ``(kernel, words, patches, rows, grain, grid, block, shared)``,
            one after another on the same stream. Their patches see the same slots, outputs and
            draw. All kernels run on the host, or all on CUDA devices.
        returned: How many of the outputs, the first ones, a call returns, and ``out=`` may give.
            The others are scratch: allocated like outputs and released when the call returns. All
            by default.
        cleared: The numbers of outputs that are zero when the first kernel begins, those that
            ``out=`` gives included.
        calls: After so many calls the plan is made again, as for a call that has none; 0: never.
    """

    def __init__(
        self,
        kernel: Kernel | None,
        words: bytes,
        patches: list[tuple[int, int, int]],
        outputs: list[tuple[int, int, tuple[int, ...]]],
        rows: int,
        grain: int,
        grid: int,
        block: int,
        shared: int,
        draws: int,
        info: object,
        then: Sequence[Stage] = (),
        returned: int | None = None,
        cleared: Sequence[int] = (),
        calls: int = 0,
    ) -> None: ...
    @property
    def info(self) -> Any: ...

class Delegate:
    """A function that runs calls in the place of a plan.

    Args:
        function: It is called with the arguments of each call that has the key, as they are given.
    """

    def __init__(self, function: Callable[..., Any]) -> None: ...

class Dispatcher:
    """Calls the plan that fits the arguments: ``dispatcher(x, **operands_and_options)``.

    Args:
        name: What errors call the op.
        slots: ``(operand name, flags)``, at most 95; the flags are those of ``SLOT_...``. A
            description is part of the key, and no patch can use it.
        slow: ``slow(reason, x, operands, options)``. `Reason.MISS` may answer with a Plan or a
            Delegate, which is kept and run; any other answer to any reason is the call's result.
            With several `inputs`, a tuple of them takes the place of x.
        draw: ``draw(device_type, device_index, generator, count) -> (seed, offset)``, or None where
            numbers can only be drawn on the device: `slow` is then asked, with `Reason.CAPTURE`.
        result: A namedtuple type with a field for each output that is returned, ``tuple`` for a
            plain one, or None for a single tensor.
        grad: ``grad(options, x, *values)``, called instead of `slow` where grad mode is on and a
            tensor requires grad. Names and options have been found right; `options` holds those
            given, or is None if none were; `values` are the operands in the order of the slots,
            None where not given, and nobody has looked at those after the tensor that requires
            grad. Its answer is the call's result.
        label: What a profiler of torch calls the range of a plan; None for no range.
        inputs: How many tensors a call gives by position: x, then the last slots. With any other
            number of positional arguments the class's ``__call__`` is called.
        delegates: Whether the dtype to which autocast casts, and which tensors require grad in grad
            mode, are parts of the key. `slow` then chooses what runs such calls; no plan may run a
            call that needs gradients.
        in_place: Whether ``out=`` may be x itself, the same elements in the same order.

    A call's ``generator=`` may also be the draw itself, ``(seed, offset)``, two ints of 64 bits, or
    a tensor of two int64 on x's device, which kernels read when they run: no `draw` is called then.
    """

    def __init__(
        self,
        name: str,
        slots: Iterable[tuple[str, int]],
        slow: Callable[[Reason, Any, dict[str, Any], dict[str, Any]], Any],
        draw: Callable[[str, int, torch.Generator | None, int], tuple[int, int] | None],
        result: type[tuple[Any, ...]] | None = None,
        grad: Callable[..., Any] | None = None,
        label: str | None = None,
        *,
        inputs: int = 1,
        delegates: bool = False,
        in_place: bool = False,
    ) -> None: ...
    def __call__(self, x: torch.Tensor, /, *further: Any, **keywords: Any) -> Any: ...
    def of_lists(self, names: tuple[str, ...], x: torch.Tensor, /, *values: Sequence[Any]) -> Any:
        """The call whose keywords have these names; the values are those of the lists, in order.

        Without effect, and NotImplemented, where a mode or a transform is active, grad mode is on,
        or a tensor is not of class Tensor or Parameter.
        """

    def clear(self) -> None:
        """Forget all plans."""

    grad: Any  # may be set to another callable
    @property
    def name(self) -> str: ...
    @property
    def plans(self) -> int: ...
    @property
    def launches(self) -> int:
        """Calls that launched so far, however many kernels each."""

    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...

def call_at_once(type: type[Dispatcher]) -> None:
    """Have instances of a class that defines ``__call__`` be called by the C++ all the same.

    The method is then for tracers alone, which read Python.
    """

def set_salt(salt: int) -> None:
    """Set a number that is part of every key; test hooks part their plans from others by it."""

def use_own_threads(own: bool) -> None:
    """Run host kernels on threads of our own even where torch's team is there; a test hook."""

def last_plan() -> Plan | None:
    """Return the plan that launched last in this process."""

MAX_ROW_DIMS: int
SHARED_BYTES: int

def place(
    placed: type[tuple[Any, ...]],
    shape: Sequence[int],
    reduced: Sequence[int],
    operands: Sequence[tuple[Any, ...]],
    element_bytes: Sequence[int],
    summed: Sequence[int],
) -> tuple[int, int, tuple[int, ...], tuple[Any, ...], tuple[int, ...]]:
    """Place operands on a grid of rows and columns, as ``bind.geometry.place`` says.

    ``placed`` is the class of a place; an operand without a shape is a tuple of its strides alone.
    """

def views(
    view: type[_View],
    storage: Mapping[torch.dtype, str],
    parts: Sequence[tuple[Any, ...]],
    places: Sequence[tuple[Any, ...] | None],
    width: int,
    columns: int,
) -> list[_View]:
    """The views of parts in their places, as ``generate.views.views_of`` says.

    ``view`` is their class, ``storage`` the C++ types of elements.
    """

def types(
    views: Sequence[tuple[Any, ...]], maps: Sequence[tuple[Any, ...] | None]
) -> tuple[bytes, list[int]] | None:
    """All that members and patches follow from of views, as ``plan.symbolic.types_of`` says."""

def shares(
    sharing: type[_Sharing],
    places: Sequence[tuple[Any, ...]],
    sizes: Sequence[int],
    columns: int,
    of_row: Sequence[bool],
    whole: Sequence[bool],
) -> list[_Sharing]:
    """How operands in these places are shared, as ``bind.geometry.shares_of`` says.

    ``sharing`` is their class.
    """

def parts(
    part: type[_Part],
    blanks: Sequence[tuple[Any, ...]],
    values: Mapping[Any, Any],
    shape: Sequence[int],
    reduced: Sequence[int],
) -> dict[Any, _Part]:
    """The parts of a call by key, as ``generate.views.filled`` says; ``part`` is their class."""

def broadcast(shape: Sequence[int], values: Iterable[Any]) -> bool:
    """Whether the tensors among the values broadcast against an x of this shape.

    They have then no more dimensions.
    """

def ones(values: Iterable[Any]) -> bytes:
    """The sizes of the tensors among the values, those of 2 and more as 2.

    Equal for values of which the same are tensors, in as many dimensions, with the same such sizes.
    """

def cpu_features() -> frozenset[str]:
    """Instruction sets that can be used here, by their names in /proc/cpuinfo."""

def device(index: int) -> DeviceProperties:
    """What the driver says of a CUDA device; RuntimeError without a driver or such a device."""

def device_count() -> int:
    """CUDA devices; 0 without a driver. Initialises the driver."""

def driver_version() -> int:
    """CUDA version of the driver, 1000 * major + 10 * minor; 0 without one."""
