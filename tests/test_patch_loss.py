# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fo.patch(model, loss=True)`: causal language models whose loss in training makes no logits."""

import copy
import functools
import importlib.util
import inspect
import pickle

import pytest
import torch
from cases import raises, thorough
from more_transformers import DECODERS
from torch import nn
from torch.nn import functional
from transformers_models import CAUSAL, MODELS, SIZES, double_of, in_double, make

import fusedops as fo
from fusedops.product import linear_loss_logits as logits

# Every worker imports this file, and transformers takes seconds: only what runs here imports it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
SOME = ["llama", *thorough("gemma2")]
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of classes; warnings of transformers are of no use here."""
    monkeypatch.setattr(logits, "_FEWEST_CLASSES", 64)
    monkeypatch.setattr(logits, "_MOST_CLASSES", 64)
    importlib.import_module("transformers.utils.logging").set_verbosity_error()


def tokens(device, ignored=True):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 99, (2, 9), generator=generator)
    labels = ids.clone()
    if ignored:
        labels[1, :4] = -100
    return {"input_ids": ids.to(device), "labels": labels.to(device)}


def patched(model):
    """A model with the loss patched and nothing else, and the report."""
    return fo.patch(model, attention=False, loss=True, skip=["model*"])


def gradients(model, inputs, **more):
    loss = model(**inputs, **more).loss
    return [loss, *torch.autograd.grad(3 * loss, [*model.parameters()])]


@pytest.mark.parametrize("more", [{}, {"num_items_in_batch": 7}], ids=str)
@pytest.mark.parametrize("name", SOME)
def test_the_loss_and_all_gradients(name, more, device):
    """Against float64, at most four times off what the stock model is."""
    model, inputs = make(name, device).train(), tokens(device)
    stock = gradients(model, inputs, **more)
    with in_double():
        truth = gradients(double_of(model), inputs, **more)
    (place,) = patched(model).replaced
    assert (place.name, place.reason) == ("", "")
    found = gradients(model, inputs, **more)
    assert model(**inputs).logits is None
    assert found[0].dtype is torch.float32
    for ours, theirs, true in zip(found, stock, truth, strict=True):
        allowed = 4 * (theirs.double() - true).norm() + 16 * EPS * true.norm()
        assert (ours.double() - true).norm() <= allowed


@pytest.mark.parametrize("name", SOME)
def test_training(name, device):
    """The losses differ from float64 by no more than four times what stock's do.

    Fifty steps; of Gemma 2 fifteen, since a rounding has grown a thousandfold after thirty of them.
    """

    def train(model):
        inputs, taken = tokens(device), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(15 if name == "gemma2" else 50):
            loss = model(**inputs).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken.append(loss.item())
        return torch.tensor(taken, dtype=torch.float64)

    model = make(name, device, num_hidden_layers=1).train()
    fused, double = copy.deepcopy(model), double_of(model)
    patched(fused)
    stock, found = train(model), train(fused)
    with in_double():
        truth = train(double)
    assert found[-1] < found[0] * 0.7
    assert ((found - truth).abs() <= 4 * (stock - truth).abs().max() + 16 * EPS * truth).all()


def test_what_stays(device):
    """Evaluation, generation, names, copies and pickles."""
    model, inputs = make("llama", device), tokens(device)
    wanted, settings = model(**inputs), {"max_new_tokens": 3, "do_sample": False}
    made = model.generate(inputs["input_ids"], **settings)
    cls, asked = type(model), inspect.signature(model.forward)
    report = patched(model)
    assert "1 x LlamaForCausalLM  head and loss, whose logits are None in training" in str(report)
    assert isinstance(model, cls)
    assert type(model).__name__ == cls.__name__
    assert inspect.signature(model.forward) == asked
    assert torch.equal(model(**inputs).logits, wanted.logits)
    assert torch.equal(model.generate(inputs["input_ids"], **settings), made)
    model.train()
    loss = model(**inputs).loss
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(**inputs).loss, loss)
    (place,) = patched(model).left[-1:]
    assert place.reason == "its loss is fused already"
    assert type(fo.unpatch(model)) is cls
    assert model(**inputs).logits is not None


def with_head(model, head):
    model.lm_head = head
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda model: {"logits_to_keep": 9},
        lambda model: {"return_dict": False},
        lambda model: {"ignore_index": -1, "labels": tokens("cpu", ignored=False)["labels"]},
        lambda model: {"labels": None},
        lambda model: setattr(model, "loss_function", lambda logits, **_: logits.sum()),
        lambda model: model.lm_head.register_forward_hook(lambda *_: None) and None,
        lambda model: setattr(model, "lm_head", nn.Sequential(model.lm_head)),
        lambda model: setattr(model, "lm_head", nn.Linear(32, 99)),
        lambda model: setattr(model.config, "final_logit_softcapping", 3.0),
    ],
)
def test_calls_that_make_logits(change):
    """What has changed since the patch, and what a call asks for."""
    model, inputs = make("llama").train(), tokens("cpu")
    patched(model)
    more = change(model)
    output = model(**{**inputs, **(more if isinstance(more, dict) else {})})
    logits = output[1] if isinstance(output, tuple) else output.logits
    assert logits.shape == (2, 9, 99)


@functools.cache
def own_models():
    """Models whose forward or loss differs from those that are known."""
    import transformers
    from transformers.modeling_outputs import CausalLMOutputWithPast as Output

    class OwnLoss(transformers.LlamaForCausalLM):
        @property
        def loss_function(self):
            return functional.cross_entropy

    class Scaled(transformers.LlamaForCausalLM):
        def logits_of(self, input_ids):
            return self.lm_head(self.model(input_ids=input_ids).last_hidden_state)

        def forward(self, input_ids=None, labels=None):
            logits = self.logits_of(input_ids) * 2
            return Output(loss=self.loss_function(logits, labels, self.vocab_size), logits=logits)

    class Other(Scaled):
        def forward(self, input_ids=None, labels=None):
            logits = self.logits_of(input_ids)
            loss = self.loss_function(logits, labels, self.vocab_size)
            return Output(loss=loss, logits=logits + 1)

    class Moved(Scaled):
        def forward(self, input_ids=None, labels=None):
            logits = self.logits_of(input_ids)
            loss = self.loss_function(logits, labels + 1, self.vocab_size)
            return Output(loss=loss, logits=logits)

    class Fails(Scaled):
        def forward(self, input_ids=None, labels=None):
            raise OSError

    return {each.__name__: each for each in (OwnLoss, Scaled, Other, Moved, Fails)}


def of(name):
    def made():
        import transformers

        cls = own_models().get(name) or getattr(transformers, name)
        return cls(transformers.LlamaConfig(**{**SIZES, "num_hidden_layers": 1}))

    return made


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (of("OwnLoss"), "its loss function is not transformers' ForCausalLMLoss"),
        (of("Scaled"), "its logits are not what its head gives, nor that capped or scaled"),
        (of("Other"), "its forward gives the loss other logits than it returns"),
        (of("Moved"), "its forward changes the labels"),
        (of("Fails"), "its forward failed on a probe: OSError"),
        (of("LlamaModel"), "it has no head of a language model, or takes no labels"),
        (lambda: make("t5"), "the model below its head is not known by its name"),
        (
            lambda: with_head(make("llama"), nn.Linear(32, 98, bias=False)),
            "its loss is over 99 classes, its head has 98",
        ),
        (
            lambda: with_head(make("llama"), nn.Identity()),
            "its head, lm_head, is no plain torch.nn.Linear: Identity",
        ),
        (
            lambda: make("gemma2", final_logit_softcapping=-1.0),
            "its final_logit_softcapping is -1.0",
        ),
    ],
)
def test_models_that_are_left(made, why):
    model = made()
    before = type(model)
    report = fo.patch(model, attention=False, loss=True)
    assert [place.reason for place in report.left if not place.name] == [why]
    assert type(model) is before


def test_errors():
    with raises(ValueError, "loss=True wants a model of transformers, got Linear"):
        fo.patch(nn.Linear(2, 2), loss=True)
    norms = nn.Sequential(nn.LayerNorm(2))
    with raises(ValueError, "got Sequential, in which there is none"):
        fo.patch(norms, loss=True)
    assert type(norms[0]) is nn.LayerNorm
    with raises(TypeError, "loss must be True or False, got 1"):
        fo.patch(nn.Linear(2, 2), loss=1)
    model = make("llama").train()
    patched(model)
    model.vocab_size = model.config.vocab_size = 98
    with raises(ValueError, "the loss is over 98 classes, and the head has 99"):
        model(**tokens("cpu"))


#: Of the models of the zoo, those whose logits are something else, or whose head is not plain.
LEFT = {"opt": "its forward failed on a probe: AttributeError"}
#: Settings that are 1, and so would hide what is done with them.
MORE = {"granite": {"logits_scaling": 6.0}, "cohere": {"logit_scale": 0.3}}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.thorough,
                *[pytest.mark.exhaustive] * (name not in ("phi", "mixtral")),
            ],
        )
        for name in (*CAUSAL, *DECODERS)
    ],
)
def test_models_of_the_zoo(name, device):
    """Losses, other results and gradients as of the stock model, the experts' loss included."""
    inputs = tokens(device)
    model = make(name, device, {**MODELS, **DECODERS}, **MORE.get(name, {})).train()
    more = {"output_router_logits": True} if name in ("mixtral", "gpt_oss") else {}

    def run():
        torch.manual_seed(0)  # of dropouts
        output = model(**inputs, **more, output_hidden_states=True)
        leaves = [*model.parameters()]
        return output, torch.autograd.grad(output.loss, leaves, allow_unused=True)

    stock, wanted = run()
    others = [type(each) for each in model.modules() if each is not model]
    report = fo.patch(model, attention=False, loss=True, skip=others)
    (place,) = [place for place in report.places if not place.name]
    assert place.reason == LEFT.get(name, "")
    output, found = run()
    gone = () if name in LEFT else ("logits",)
    assert [*output] == [key for key in stock if key not in gone]
    torch.testing.assert_close(output.loss, stock.loss)
    total = torch.stack([one.norm() for one in wanted if one is not None]).norm()
    for ours, theirs in zip(found, wanted, strict=True):
        if theirs is not None:
            assert (ours - theirs).norm() <= 64 * EPS * total


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_compiled(name, device):
    model, inputs = make(name, device).train(), tokens(device)
    wanted = gradients(model, inputs)
    patched(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    output = compiled(**inputs)
    assert output.logits is None
    found = [output.loss, *torch.autograd.grad(3 * output.loss, [*model.parameters()])]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_autocast(device):
    """Products in bfloat16, as of the stock model; the loss is float32."""
    model, inputs = make("llama", device).train(), tokens(device)
    with in_double():
        truth = gradients(double_of(model), inputs)
    found = []
    for _ in range(2):
        with torch.autocast(device, torch.bfloat16):
            found.append(gradients(model, inputs))
        patched(model)
    for theirs, ours, true in zip(*found, truth, strict=True):
        assert ours.dtype is theirs.dtype is torch.float32
        allowed = 2 * (theirs.double() - true).norm() + 2**-8 * true.norm()
        assert (ours.double() - true).norm() <= allowed
