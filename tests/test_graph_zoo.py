# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Architectures of others through the backend "fusedops": results, gradients, what is fused."""

import copy

import pytest
import torch
from captured import compiled, compiled_products
from cases import randn
from more_transformers import IN_TWO_PARTS, MORE, OF_IMAGES, but_alike
from transformers_models import MODELS, differentiate, double_of, in_double, inputs_of
from transformers_models import make as make_transformer

pytestmark = pytest.mark.thorough

#: The fewest row ops that are fused in each, and how many there are.
TRANSFORMERS = {
    "bert": (7, 7),
    "gpt2": (7, 7),
    "t5": (18, 18),
    "llama": (11, 11),
    "gemma2": (15, 15),
    "qwen3": (15, 15),
    "gpt_oss": (7, 8),
    "vit": (7, 7),
    "swin": (11, 15),
}


#: The same of further ones. What is left of them are norms with nothing elementwise beside them.
MORE_COUNTS = {
    "roberta": (7, 7),
    "distilbert": (7, 7),
    "electra": (7, 7),
    "albert": (7, 7),
    "mpnet": (7, 7),
    "deberta_v2": (7, 7),
    "modernbert": (6, 7),
    "mistral": (11, 11),
    "mixtral": (11, 12),
    "qwen2": (11, 11),
    "gemma": (11, 11),
    "gemma3": (11, 19),
    "phi": (4, 9),
    "phi3": (7, 11),
    "olmo2": (15, 15),
    "granite": (11, 11),
    "stablelm": (6, 11),
    "cohere": (5, 5),
    "gpt_neox": (4, 11),
    "gptj": (4, 5),
    "opt": (3, 7),
    "bloom": (6, 8),
    "falcon": (6, 9),
    "starcoder2": (10, 11),
    "smollm3": (11, 11),
    "bart": (18, 18),
    "deit": (7, 7),
    "beit": (4, 7),
    "dinov2": (7, 7),
    "segformer": (12, 22),
}


def assert_as_exact(got, stock, truth):
    """No result is farther from the truth than eight times the farthest of the stock model's runs.

    The largest error of one run is a draw. Where numbers cancel it may be far below what a single
    rounding of the parameters changes: in a gradient of SegFormer's keys an eighth of that. So
    `stock` is several runs, see `with_roundings`.
    """
    assert stock[0].keys() <= got.keys()
    for name in got.keys() - stock[0].keys():
        assert not got[name].any()  # AOTAutograd has zeros where eager torch has no gradient
    for name in stock[0]:
        value = got[name]
        true = truth[name].double()
        off = max((one[name].double() - true).abs().max() for one in stock)
        floor = torch.finfo(value.dtype).eps * true.abs().max()
        worst = (value.double() - true).abs().max()
        assert worst <= 8 * torch.maximum(off, floor), (name, worst.item(), off.item())


def with_roundings(model, differentiated, runs=3):
    """Runs of a model as it is, then with each parameter one rounding more, less or the same."""
    found = [differentiated(model)]
    for seed in range(runs):
        twin, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for one in twin.parameters():
                steps = torch.randint(-1, 2, one.shape, generator=generator)
                one.mul_(1 + torch.finfo(one.dtype).eps * steps)
        found.append(differentiated(twin))
    return found


def counted(found):
    return sum(one.op is not None for one in found), len(found)


def assert_counts(found, wanted):
    """So many row ops as there are, and no fewer fused than were."""
    fused, all_of_them = counted(found)
    assert all_of_them == wanted[1]
    assert fused >= wanted[0]


def as_stock(name, compiled):
    """Hold a fused transformer to the stock one; what was found in it."""
    pytest.importorskip("transformers")
    torch._dynamo.reset()
    model = make_transformer(name, models={**MODELS, **MORE})
    like = "vit" if name in OF_IMAGES else "t5" if name in IN_TWO_PARTS else name
    inputs, counts = inputs_of(like)
    stock = with_roundings(model, lambda one: differentiate(one, inputs, counts))
    with in_double():
        whole = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        truth = differentiate(double_of(model), whole, counts)
    twin = copy.deepcopy(model)
    forward, found = compiled(twin.forward)
    twin.forward = forward
    assert_as_exact(differentiate(twin, inputs, counts), stock, truth)
    print(name, counted(found))
    return found


#: Linear layers with functors after them, of those that there are, where all are taken.
LAYERS = {"bert": (3, 13), "t5": (4, 33), "llama": (2, 15), "gemma2": (3, 15), "swin": (5, 25)}


# In CI the layers of T5, Gemma 2 and Swin are held to the stock models below, without these counts.
@pytest.mark.parametrize("name", but_alike(TRANSFORMERS, ["gpt_oss", "t5", "gemma2", "swin"]))
def test_transformers(name):
    assert TRANSFORMERS.keys() == MODELS.keys()
    assert_counts(as_stock(name, compiled), TRANSFORMERS[name])


@pytest.mark.parametrize(
    "name", but_alike(MORE_COUNTS, ["bart", "deberta_v2", "segformer", "gpt_neox", "falcon"])
)
def test_more_transformers(name):
    assert_counts(as_stock(name, compiled), MORE_COUNTS[name])


def test_each_of_them_has_its_counts():
    assert MORE.keys() == MORE_COUNTS.keys()


@pytest.mark.parametrize("name", but_alike(LAYERS, ["gemma2", "swin"]))
def test_linear_layers_of_transformers(name):
    """With the option "products" at "always": in "auto" a CPU takes none."""
    assert_counts(as_stock(name, compiled_products), LAYERS[name])


#: Of timm, tiny ones: the name, what else `create_model` is given, and the same counts.
IMAGES = {
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 2}, (4, 5)),
    "deit3_small_patch16_224": ({"img_size": 32, "depth": 2}, (4, 5)),
    "convnext_atto": ({"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 16)}, (0, 9)),
}


def stepped(model, x):
    """The result of a model, and its gradients under a random upstream gradient."""
    y = model(x)
    named = {k.removeprefix("_orig_mod."): p for k, p in model.named_parameters()}
    upstream = randn(*y.shape, seed=7).to(y)
    gradients = torch.autograd.grad(y, [*named.values()], upstream, allow_unused=True)
    found = {k: g for k, g in zip(named, gradients, strict=True) if g is not None}
    return {"y": y.detach(), **found}


@pytest.mark.parametrize("name", IMAGES)
def test_timm(name):
    timm = pytest.importorskip("timm")
    settings, wanted = IMAGES[name]
    torch._dynamo.reset()
    torch.manual_seed(3)
    model = timm.create_model(name, num_classes=5, **settings).eval()
    x = randn(2, 3, 32, 32)
    forward, found = compiled(model)
    truth = stepped(copy.deepcopy(model).double(), x.double())
    stock = with_roundings(model, lambda one: stepped(one, x))
    assert_as_exact(stepped(forward, x), stock, truth)
    print(name, counted(found))
    assert_counts(found, wanted)
