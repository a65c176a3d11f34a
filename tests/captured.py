# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of plain torch through the backend "fusedops", held to what eager torch gives."""

import functools

import torch
from cases import randn

from fusedops.graph.backend import fusedops

#: Two ways to compute one number in double differ by so much of the largest number at hand, as in
#: `fusedops.reference.error_bound`; a sum over a few hundred terms adds 8 roundings to 2^-44.
DOUBLE = 2.0**-41


def compiled(program, inner="aot_eager", **named):
    """The program behind the backend, and the list of what that finds in its graphs."""
    found = []
    backend = functools.partial(fusedops, options={"inner": inner}, report=found.extend)
    return torch.compile(program, backend=backend, **named), found


def compiled_products(program, inner="aot_eager", products="always", **named):
    """The same with linear layers, by default all that can be declared; what is found of these."""
    found = []
    options = {"inner": inner, "products": products}
    backend = functools.partial(fusedops, options=options, report_products=found.extend)
    return torch.compile(program, backend=backend, **named), found


def target_of(node):
    """What a node of a graph calls; of a declaration's operator with its class: forward of Map."""
    name = str(node.target)
    if not name.startswith("fusedops.forward"):
        return name
    text = next(one for one in node.args if isinstance(one, str))
    return f"{name} of {text.partition('(')[0]}"


def listed(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


def trained(program, inputs, seed=5):
    """Outputs of a program and the gradients of its floating inputs, upstream ones being random."""
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
    torch.manual_seed(seed)
    outputs = listed(program(*leaves))
    upstream = [
        randn(*y.shape, dtype=y.dtype, seed=90 + k).to(y.device) for k, y in enumerate(outputs)
    ]
    wanted = [t for t in leaves if t.requires_grad]
    gradients = torch.autograd.grad(outputs, wanted, upstream, allow_unused=True)
    return [y.detach() for y in outputs], list(gradients)


def assert_near(got, wanted, relative=DOUBLE):
    """Equal but for roundings of the size of a tensor's largest element."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert (one is None) == (other is None)
        if other is None:
            continue
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        size = other.nan_to_num(0, 0, 0).abs().amax().item() if other.numel() else 0
        torch.testing.assert_close(one, other, rtol=0, atol=relative * max(1, size), equal_nan=True)


def held(program, *inputs, dynamic=None, compiled=compiled):
    """Run a program in double, fused and eager: equal outputs and gradients; what was found."""
    torch._dynamo.reset()
    inputs = [t.double() if t.is_floating_point() else t for t in inputs]
    fused, found = compiled(program, dynamic=dynamic)
    got, wanted = trained(fused, inputs), trained(program, inputs)
    assert_near(got[0], wanted[0])
    assert_near(got[1], wanted[1])
    return found
