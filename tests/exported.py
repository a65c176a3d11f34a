# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of exports share: what is exported, and libraries of it that can be called."""

import ctypes
import subprocess

import torch
from cases import randn
from cpptest import same_bits

import fusedops as fo
from fusedops import flagship
from fusedops.jit import env

#: What an output holds before a function writes it.
BEFORE = 7


class Library:
    """Some headers in one library; each is included twice, as two files of a program would."""

    def __init__(self, folder, *headers, extra=()):
        self.parameters = {k: v for header in headers for k, v in header.parameters.items()}
        command = headers[0].command
        cuda = command[0] == "nvcc"
        files = [f"{header.name}.{'cuh' if cuda else 'h'}" for header in headers]
        for file, header in zip(files, headers, strict=True):
            (folder / file).write_text(header.text)
        cases = [
            f"  if (number == {number}) return reinterpret_cast<void*>(&{name});"
            for number, name in enumerate(self.parameters)
        ]
        lines = [
            *(f'#include "{file}"' for file in files * 2),
            'extern "C" void* find(int number) {',
            *cases,
            "  return nullptr;",
            "}",
        ]
        source = folder / f"all.{'cu' if cuda else 'cpp'}"
        source.write_text("\n".join([*lines, ""]))
        shared = ["-shared", "-Xcompiler", "-fPIC"] if cuda else ["-shared", "-fPIC"]
        include = f"-I{env.include_dir()}"
        compile_(*command, *shared, *extra, include, source, "-o", folder / "all.so")
        self.loaded = ctypes.CDLL(str(folder / "all.so"))
        self.loaded.find.restype = ctypes.c_void_p

    def call(self, name, values, result=ctypes.c_int):
        """Call a function with values by the names of its parameters."""
        given = [_argument(key, values[key]) for key in self.parameters[name]]
        address = self.loaded.find(list(self.parameters).index(name))
        return ctypes.CFUNCTYPE(result, *map(type, given))(address)(*given)


def compile_(*command):
    """Run a compiler, which must not warn."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr


def _argument(key, value):
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if key in ("seed", "offset"):
        return ctypes.c_uint64(value)
    if value is None or key == "cuda_stream":
        return ctypes.c_void_p(value)
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


class Call:
    """A call of an op with all its gradients, and room for what exported functions make of it.

    Attributes:
        want: Results and gradients by the names of the exported functions' parameters.
        values: What these functions are called with.
    """

    def __init__(self, op, x, operands, draw=None, **options):
        self.op, self.device = op, x.device
        if draw is not None:
            options["generator"] = draw
        leaves = {name: _leaf(value) for name, value in {"x": x, **operands}.items()}
        named = {name: leaves[name] for name in operands}
        result = op(leaves["x"], **named, **options)
        results = [result] if isinstance(result, torch.Tensor) else result
        outputs = dict(zip(op.outputs, results, strict=True))
        generator = torch.Generator(x.device).manual_seed(5)
        arriving = {
            name: torch.randn(y.shape, dtype=y.dtype, device=y.device, generator=generator)
            for name, y in outputs.items()
            if y.requires_grad
        }
        wanted = {
            k: v for k, v in leaves.items() if isinstance(v, torch.Tensor) and v.requires_grad
        }
        gradients = torch.autograd.grad(
            [outputs[name] for name in arriving], list(wanted.values()), list(arriving.values())
        )
        self.want = {name: y.detach() for name, y in outputs.items()}
        self.want |= {f"d{name}": g for name, g in zip(wanted, gradients, strict=True)}
        reduced = op.bind(x, {**operands, **options}).reduced
        self.rows = x.numel() // torch.Size(x.shape[dim] for dim in reduced).numel()
        double = torch.float64 in (x.dtype, results[0].dtype)
        compute = torch.float64 if double else torch.float32
        kept = torch.empty(self.rows * op.kept, dtype=compute, device=x.device)
        self.values = {"x": x, **operands, "rows": self.rows, "kept": kept}
        self.values |= {f"d{name}": value for name, value in arriving.items()}
        self.values |= {
            name: torch.full(value.shape, BEFORE, dtype=value.dtype, device=value.device)
            for name, value in self.want.items()
        }
        if draw is not None:
            self.values["seed"], self.values["offset"] = draw
        if x.is_cuda:
            self.values["cuda_stream"] = torch.cuda.current_stream().cuda_stream

    def room(self, library, name):
        """Make the workspace, full of NaN."""
        size = library.call(f"{name}_workspace_bytes", self.values, ctypes.c_int64)
        space = torch.full((size + 16,), 0xFF, dtype=torch.uint8, device=self.device)
        self.values["workspace"] = space

    def check(self, library, name, near=()):
        """Both functions on the calling thread or stream give what the op gives, to the bit."""
        self.room(library, name)
        assert library.call(f"{name}_forward", self.values) == 0
        assert library.call(f"{name}_backward", self.values) == 0
        self.compare(near)

    def compare(self, near=()):
        """`near` are results that may differ in the last bit."""
        for name, want in self.want.items():
            if name in near:
                torch.testing.assert_close(self.values[name], want)
            else:
                assert same_bits(self.values[name], want.contiguous()), name


def _leaf(value):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().requires_grad_()
    return value


class Address(torch.Tensor):
    """Something that is nowhere."""

    @staticmethod
    def __new__(cls, address):
        made = torch.Tensor._make_subclass(cls, torch.empty(0))
        made.address = address
        return made

    def data_ptr(self):
        return self.address


#: What the rows of `add_norm` share.
SUMS = ("dbias", "dgamma", "dbeta")

DRAW = (0x123456789ABCDEF0, 4)


@fo.functor
def softcap(x, cap):
    return cap * torch.tanh(x / cap)


CAPPED = fo.LogSoftmax(load=[softcap("cap"), fo.Causal()], store=[fo.Dropout("p")])
SUNK = fo.Softmax(load=[fo.Scale("scale"), fo.Causal()], lse=True, sink="sink")
RMS = fo.RMSNorm(load=[softcap("cap")], store=[fo.Affine("gamma")], stats=True)


def add_norm(rows, columns, device, dtype=torch.float16, p=0.1):
    case = flagship.add_norm((rows, columns), p=p, dtype=dtype, device=device)
    return case.op, case.x, case.operands


def attention(device, dtype=torch.float32, p=0.2):
    case = flagship.attention((2, 3, 40, 333), p=p, dtype=dtype, device=device)
    return case.op, case.x, case.operands


def capped(device):
    """Rows in several dimensions, sums over rows and over columns, indices, a count."""
    x = randn(2, 4, 24, 100, dtype=torch.bfloat16, device=device)
    return CAPPED, x, {"cap": randn(4, 1, 1, device=device).abs() + 1, "p": 0.5}


def rms(device):
    x = randn(70, 65, dtype=torch.float64, device=device)
    return RMS, x, {"cap": 5.0, "gamma": randn(65, device=device)}


def sunk(device):
    """An operand of the operator itself, which rows share, and a gradient of the logsumexp."""
    x = randn(2, 4, 24, 100, dtype=torch.float16, device=device)
    return SUNK, x, {"scale": 0.25, "sink": randn(4, 1, 1, device=device, seed=1)}


def sunk_of_rows(device):
    x = randn(300, 101, device=device)
    op = fo.LogSoftmax(lse=True, sink="sink")
    return op, x, {"sink": randn(1, device=device, seed=1)}


CASES = {
    "add_norm": lambda device: add_norm(300, 1001, device),
    "add_norm_wide": lambda device: add_norm(300, 1024, device),
    "add_norm_plain": lambda device: add_norm(300, 1001, device, torch.float32, 0.0),
    "attention": attention,
    "attention_plain": lambda device: attention(device, torch.float16, 0.0),
    "capped": capped,
    "sunk": sunk,
    "sunk_of_rows": sunk_of_rows,
    "rms": rms,
}


def built(folder, device, extra=()):
    headers = []
    for name, case in CASES.items():
        op, x, operands = case(device)
        headers.append(fo.export(op, x, name=name, **operands))
    return Library(folder, *headers, extra=extra)


def draw_of(library, name):
    return DRAW if "seed" in library.parameters[f"{name}_forward"] else None


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def described(name, rows=4096, columns=1024):
    """A flagship of training's size, of tensors without memory."""
    if name == "attention":
        x = meta(8, 16, columns, columns, dtype=torch.float16)
        bias = meta(1, 16, columns, columns, dtype=torch.float16)
        padding = meta(8, 1, 1, columns, dtype=torch.bool)
        operands = {"scale": 0.125, "pair_bias": bias, "padding": padding, "p": 0.1}
        return flagship.ATTENTION, x, operands
    x, v = meta(rows, columns, dtype=torch.float16), meta(columns)
    return flagship.ADD_NORM, x, {"bias": v, "p": 0.1, "residual": x, "gamma": v, "beta": v}
