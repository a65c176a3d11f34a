# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tiny models of transformers with random weights, and the same in float64 throughout."""

import contextlib
import copy
import sys

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
IMAGES = {"image_size": 16, "hidden_size": 32, "intermediate_size": 48}

#: The class of each model, and the settings of its configuration.
MODELS = {
    "bert": ("BertModel", SIZES),
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        | {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": None},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "sliding_window": 4, "query_pre_attn_scalar": 8}),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**GROUPED, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
        | {"experts_implementation": "eager"},  # The grouped product has no float64.
    ),
    "vit": (
        "ViTModel",
        {**IMAGES, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4},
    ),
    "swin": (
        "SwinModel",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "window_size": 2}
        | {"depths": [2, 2], "num_heads": [2, 4]},
    ),
}
CAUSAL = ("gpt2", "llama", "gemma2", "qwen3", "gpt_oss")


def make(name, device="cpu", models=MODELS, **settings):
    """A model with eager attention, in evaluation."""
    import transformers

    cls, known = models[name]
    if not hasattr(transformers, cls):
        pytest.skip(f"transformers {transformers.__version__} has no {cls}")
    cls = getattr(transformers, cls)
    config = cls.config_class(**{**known, **settings}, attn_implementation="eager")
    torch.manual_seed(3)
    model = cls(config).eval()
    with torch.no_grad():  # Weights of one or zero would hide what multiplies by them.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model.to(device)


def asks_the_registry(model):
    """Whether its attention does, which is so of all of these models in transformers 5.23."""
    return hasattr(sys.modules[type(model).__module__], "ALL_ATTENTION_FUNCTIONS")


def inputs_of(name, device="cpu", padded=True):
    """What a call takes, and which of its results count: those of the queries that see a key."""
    generator = torch.Generator().manual_seed(5)
    if name in ("vit", "swin"):
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator).to(device)}, None
    ids = torch.randint(3, 99, (2, 9), generator=generator).to(device)
    mask = torch.ones(2, 9, dtype=torch.long, device=device)
    if padded:
        mask[1, :3] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if name == "t5":
        inputs |= {"decoder_input_ids": ids.flip(1)}
        return inputs, None
    return inputs, mask.bool()


def run(model, inputs, counts):
    """The first result: the logits, or the last hidden state."""
    result = model(**inputs)[0]
    return result if counts is None else result[counts]


def differentiate(model, inputs, counts):
    """The result, and by name the gradient of each parameter under a random upstream gradient."""
    result = run(model, inputs, counts)
    generator = torch.Generator().manual_seed(7)
    upstream = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(
        result, [*named.values()], upstream.to(result), allow_unused=True
    )
    found = {"y": result.detach()}
    return found | {k: g for k, g in zip(named, gradients, strict=True) if g is not None}


class _InDouble(TorchFunctionMode):
    """Forwards that go to float32 on their way stay in float64, where they come from it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        double = bool(args) and isinstance(args[0], Tensor) and args[0].dtype is torch.float64
        if double and function is Tensor.float:
            return args[0]
        if double and function is Tensor.to and torch.float32 in (*args[1:], kwargs.get("dtype")):
            return args[0]
        if double and kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)


@contextlib.contextmanager
def in_double():
    with _InDouble():
        yield


def double_of(model):
    """The same model in float64; rotations keep the angles that they are computed with."""
    twin = copy.deepcopy(model).double()
    for (name, buffer), stock in zip(twin.named_buffers(), model.buffers(), strict=True):
        if "inv_freq" in name:
            buffer.data = stock.clone()
    return twin
