# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled modules whose numbers Dynamo may trace as symbols, and numbers that change."""

import importlib

import pytest
import torch
from cases import exhaustive, named, randn, thorough
from more_transformers import MORE, OF_IMAGES
from products import gelu
from transformers_models import MODELS, inputs_of, make

import fusedops as fo

ROWS, SCORES = (3, 8), (2, 3, 5, 5)


class _Loss(fo.nn.CrossEntropyLoss):
    def forward(self, x):
        return super().forward(x, torch.arange(3))


class _LinearLoss(fo.nn.LinearCrossEntropyLoss):
    def forward(self, x):
        return super().forward(x, torch.arange(3))


class _Experts(fo.nn.Experts):
    def forward(self, x):
        return super().forward(x, torch.tensor([[0, 1], [1, 0], [0, 0]]), torch.full((3, 2), 0.5))


#: What makes each module, the shapes of a call, and the numbers that change after the first call.
MODULES = {
    "AttentionSoftmax": (
        lambda: fo.nn.AttentionSoftmax(scale=0.5, p=0.1, causal=True, window=3, softcap=3.0),
        (SCORES,),
        {"scale": 0.7, "p": 0.3, "softcap": 5.0, "window": 2},
    ),
    "AttentionSoftmax, offsets": (
        lambda: fo.nn.AttentionSoftmax(causal=fo.Causal("top-left", 1), window=fo.Window(2, 1)),
        (SCORES,),
        {"causal": fo.Causal("top-left", 0), "window": fo.Window(1, 1), "p": 0.3},
    ),
    "ResidualLayerNorm": (
        lambda: fo.nn.ResidualLayerNorm(8, p=0.1),
        (ROWS, ROWS),
        {"p": 0.3, "alpha": 0.7, "eps": 0.1},
    ),
    "ResidualRMSNorm": (
        lambda: fo.nn.ResidualRMSNorm(8, eps=0.01, p=0.1, return_stream=True),
        (ROWS, ROWS),
        {"p": 0.3, "alpha": 0.7, "eps": 0.1},
    ),
    "LayerNorm": (lambda: fo.nn.LayerNorm(8), (ROWS,), {"eps": 0.1}),
    "RMSNorm": (lambda: fo.nn.RMSNorm(8), (ROWS,), {"eps": 0.1}),
    "GroupNorm": (lambda: fo.nn.GroupNorm(2, 8), ((2, 8, 3),), {"eps": 0.1, "num_groups": 4}),
    "Linear": (lambda: fo.nn.Linear(8, 8, activation=gelu(), p=0.1), (ROWS, ROWS), {"p": 0.3}),
    "MLP": (
        lambda: fo.nn.MLP(8, 8, activation=gelu(), p=0.1, p_hidden=0.2),
        (ROWS, ROWS),
        {"p": 0.3, "p_hidden": 0.4},
    ),
    "Experts": (lambda: _Experts(2, 8, 8), (ROWS,), {}),
    "CrossEntropyLoss": (_Loss, (ROWS,), {"label_smoothing": 0.1, "z_loss": 0.1}),
    "LinearCrossEntropyLoss": (
        lambda: _LinearLoss(8, 2500, softcap=3.0),  # two blocks
        (ROWS,),
        {"label_smoothing": 0.1, "z_loss": 0.1, "softcap": 2.0},
    ),
}

#: A dropout in each place: the STORE of a softmax, the LOAD of a norm, products.
SOME = ["AttentionSoftmax", "ResidualLayerNorm", "MLP"]
OTHERS = [name for name in MODULES if name not in SOME]


def results(function, parameters, shapes):
    """Outputs and gradients of a call; masks come from a seed."""
    torch.manual_seed(3)
    given = [randn(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    outputs = named(function(*given))
    upstream = [randn(*y.shape, seed=9 + i) for i, y in enumerate(outputs.values())]
    gradients = torch.autograd.grad([*outputs.values()], [*given, *parameters], upstream)
    return [*(y.detach() for y in outputs.values()), *gradients]


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dynamic", [True, *thorough(None)], ids=str)
@pytest.mark.parametrize("name", [*SOME, *thorough(*OTHERS[::2]), *exhaustive(*OTHERS[1::2])])
def test_numbers_that_change(name, dynamic):
    """One compiled module, in evaluation and in training, computes with the numbers of the call."""
    torch._dynamo.reset()
    make_module, shapes, changes = MODULES[name]
    module = make_module().eval()
    compiled = torch.compile(module, dynamic=dynamic, backend="aot_eager", fullgraph=True)
    before = None
    for key, value in {"training": False, **changes}.items():
        setattr(module, key, value)
        got, want = (results(f, [*module.parameters()], shapes) for f in (compiled, module))
        assert all(map(torch.equal, got, want)), key
        assert before is None or not torch.equal(got[0], before), key
        before = got[0]
        if key == "training":
            module.train()


def test_all_modules_are_tested():
    assert {name.partition(",")[0] for name in MODULES} == {*fo.nn.__all__}


#: The names by which layers of models know the rate of a dropout.
RATES = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout")


def step(call, model, inputs):
    """The result, and the gradients of all parameters; masks come from a seed."""
    torch.manual_seed(3)
    result = call(**inputs)[0]
    found = torch.autograd.grad(result.sum(), [*model.parameters()], allow_unused=True)
    # Compiled code gives zeros where eager code gives nothing.
    return [result.detach(), *(torch.zeros(()) if g is None or not g.any() else g for g in found)]


def check_model(name, models, replaced, **settings):
    """Steps of training of a compiled model whose rates of dropout change are those of eager."""
    torch._dynamo.reset()
    model = make(name, models=models, **settings).train()
    importlib.import_module("fusedops.integrations.transformers")
    if "norms" in replaced:
        fo.patch(model, attention=False)
    if "attention" in replaced:
        model.set_attn_implementation("fusedops")
    inputs, _ = inputs_of("vit" if name in OF_IMAGES else name)
    if "pixel_values" in inputs:
        # The numbers are symbols still. Those of an image's size cost a minute in Swin's windows.
        torch._dynamo.mark_static(inputs["pixel_values"])
    compiled = torch.compile(model, dynamic=True, backend="eager")
    for p in (0.2, 0.4):
        for module in model.modules():
            if type(module) is torch.nn.Dropout:
                module.p = p
            for rate in RATES:
                if isinstance(getattr(module, rate, None), float):
                    setattr(module, rate, p)
        got, want = step(compiled, model, inputs), step(model, model, inputs)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "replaced"),
    [pytest.param("bert", "norms", marks=pytest.mark.thorough), ("llama", "attention")],
)
def test_a_small_model(name, replaced):
    pytest.importorskip("transformers")
    check_model(name, MODELS, replaced, num_hidden_layers=1)


#: CI has no others: tests/test_graph_zoo.py has images and norms of both kinds.
KINDS = ["llama"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [*KINDS, *exhaustive(*(name for name in {**MODELS, **MORE} if name not in KINDS))]
)
def test_models(name):
    """Of one layer each, since a second one is traced like the first."""
    pytest.importorskip("transformers")
    models = {**MODELS, **MORE}
    layers = {"num_hidden_layers", "n_layer", "n_layers"} & models[name][1].keys()
    check_model(name, models, "norms and attention", **dict.fromkeys(layers, 1))
