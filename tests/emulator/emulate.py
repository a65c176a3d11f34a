# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Run calls with tensors on the CPU through the kernels of a GPU, compiled for the host.

    with emulated("sm_90", order="random"):
        y = op(x)

Which kernel a call gets, its argument and its launch are those that a GPU of the architecture would
get. The block ends with an AssertionError if the machine found fault with a launch.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from headers import translated, write_headers

from fusedops import _runtime
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.jit.env import include_dir

HERE = Path(__file__).resolve().parent
ORDERS = ("ascending", "descending", "random")
SANITIZED = "FUSEDOPS_EMULATOR_ASAN"

#: A symbol of one kernel must not be taken for that of another.
HIDDEN = ("-fvisibility=hidden", "-fno-gnu-unique")
FLAGS = ("-std=c++17", "-O1", "-w", "-fpermissive", "-fPIC", "-ffp-contract=off", *HIDDEN)
#: Variables that nothing has set are a pattern, not what an earlier call has left.
CHECKS = ("-fsanitize=alignment", "-ftrivial-auto-var-init=pattern")
DEFINES = ("-DFUSEDOPS_CUDA=1", "-DFUSEDOPS_ON_DEVICE=1")
ASAN = ("-fsanitize=address", "--param", "asan-stack=0")  # the threads' stacks are the machine's

_kernels: dict[tuple[object, ...], _runtime.Kernel] = {}
_emulated: set[int] = set()
_real = (Variant.kernel, Variant.loaded, _runtime.Plan, _runtime.set_salt, Target.of)


@functools.cache
def folder() -> Path:
    """Where kernels are kept: they are named for their content, so an earlier run's are right."""
    text = [file.read_text() for file in (*sorted(HERE.rglob("*.h")), HERE / "machine.cpp")]
    text += [file.read_text() for file in sorted(Path(include_dir()).rglob("*.cuh"))]
    text += [(HERE / "headers.py").read_text()]
    text += [*FLAGS, *CHECKS, *DEFINES, os.environ.get(SANITIZED, "")]
    name = hashlib.sha256("\0".join(text).encode()).hexdigest()[:16]
    made = Path(os.environ["FUSEDOPS_CACHE_DIR"]) / "emulated" / name  # conftest.py sets it
    if not (made / "include").exists():
        made.mkdir(parents=True, exist_ok=True)
        fresh = made / f"include.{os.getpid()}"
        write_headers(Path(include_dir()), fresh)
        with contextlib.suppress(OSError):  # another process was first
            fresh.rename(made / "include")
    return made


def run_compiler(output: Path, *arguments: object) -> Path:
    """Compile to a file that appears whole or not at all."""
    if not output.exists():
        partial = output.with_name(f"{output.name}.{os.getpid()}")
        command = ["g++", *map(str, arguments), "-o", str(partial)]
        # A sanitizer that is loaded before Python must not be loaded before the compiler.
        env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "ASAN_OPTIONS")}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        assert done.returncode == 0, "\n".join([str(output), *errors[:10]])
        partial.rename(output)
    return output


@functools.cache
def machine() -> ctypes.CDLL:
    """The library that runs blocks and threads."""
    source = HERE / "machine.cpp"
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared")
    made = ctypes.CDLL(str(run_compiler(folder() / "libmachine.so", *flags, source)))
    made.machine_take_failure.restype = ctypes.c_char_p
    return made


def shared_object(variant: Variant) -> Path:
    """A variant's kernel as a library with the entry of a kernel for the host."""
    machine()
    assert variant.tile is not None
    source = translated(variant.source)
    text = f"""\
#include "{HERE}/builtins.h"
{source}
static void run_thread(const void* words) {{
  fusedops_kernel(*static_cast<const Arguments*>(words));
}}
extern "C" __attribute__((visibility("default"))) void fusedops_rows(const void* words, int64_t,
                                                                     int64_t launch) {{
  machine_launch(run_thread, words, unsigned(launch & 0xffffffff), {variant.tile.threads_per_block},
                 unsigned(launch >> 32), &emulated::used_shared,
                 "{variant.name}, {variant.tile.cpp}");
}}
"""
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    made = folder()
    done = made / f"{name}.so"
    if not done.exists():
        file = made / f"{name}.{os.getpid()}.cpp"
        file.write_text(text)
        asan = ASAN if os.environ.get(SANITIZED) else ()
        include = [f"-I{one}" for one in (made / "include", HERE / "cuda")]
        flags = (*FLAGS, *CHECKS, *DEFINES, *asan)
        compiled = run_compiler(made / f"{name}.{os.getpid()}.o", *flags, *include, "-c", file)
        # Without -fsanitize here the check of alignment calls the machine's handler.
        options = ("-shared", "-fsanitize=address") if asan else ("-shared",)
        run_compiler(done, *options, compiled, made / "libmachine.so")
        compiled.unlink()
        file.unlink()
    return done


def _kernel(variant: Variant) -> _runtime.Kernel:
    if variant.tile is None:
        return _real[0](variant)
    if variant.key not in _kernels:
        made = _runtime.load_host(os.fsencode(shared_object(variant)), "fusedops_rows")
        _kernels[variant.key] = made
        _emulated.add(id(made))
    return _kernels[variant.key]


def _is_loaded(variant: Variant) -> bool:
    if variant.tile is None:
        return bool(_real[1].fget(variant))
    return variant.key in _kernels


def _plan(**given):
    """A plan whose kernels for the host are told the launch in the number of their rows."""
    if given["kernel"] is None or id(given["kernel"]) not in _emulated:
        return _real[2](**given)
    launch = given["grid"] | given["shared"] << 32
    given |= {"rows": launch, "grain": launch, "grid": 1, "block": 1, "shared": 0}
    given["then"] = [
        (kernel, words, patches, grid | shared << 32, grid | shared << 32, 1, 1, 0)
        for kernel, words, patches, _rows, _grain, grid, _block, shared in given.get("then", ())
    ]
    return _real[2](**given)


_salts: dict[tuple[str, int], int] = {}
_salt = _own_salt = 0


def _set_salt(salt: int) -> None:
    """Keep the plans of an emulated GPU apart from all others; no salt of theirs is as large."""
    global _salt
    _salt = salt
    _real[3](salt + _own_salt)


@contextlib.contextmanager
def emulated(
    arch: str = "sm_90", order: str = "random", *, seed: int = 1, multiprocessors: int = 4
) -> Iterator[None]:
    """Run the block's calls on the CPU with the kernels of a GPU of `arch` without clusters.

    Args:
        arch: The architecture, as in `Target.named`.
        order: In which threads run that wait for nothing, and blocks: one of `ORDERS`.
        seed: Of the random order.
        multiprocessors: Of the GPU: as many blocks as these take go over all rows.
    """
    global _own_salt
    target = Target.named(arch, multiprocessors)
    assert target.gpu is not None
    target = target._replace(gpu=target.gpu._replace(cluster_limit=1))
    machine().machine_set_order(ORDERS.index(order), seed)
    Variant.kernel, Variant.loaded = _kernel, property(_is_loaded)
    _runtime.Plan, _runtime.set_salt = _plan, _set_salt
    Target.of = classmethod(lambda cls, device: target)
    own = _salts.setdefault((arch, multiprocessors), (len(_salts) + 1) << 20)
    before, _own_salt = _own_salt, own
    _set_salt(_salt)
    try:
        yield
        failure = machine().machine_take_failure().decode()
        assert not failure, failure
    finally:
        machine().machine_take_failure()
        _own_salt = before
        _set_salt(_salt)
        Variant.kernel, Variant.loaded, _runtime.Plan, _runtime.set_salt, Target.of = _real
