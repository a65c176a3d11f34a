# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""More architectures of transformers, tiny, for the backend "fusedops" alone."""

from cases import but_seldom
from transformers_models import GROUPED, IMAGES, SIZES

PATCHES = {**IMAGES, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4}
PADDED_BY_ONE = {**SIZES, "pad_token_id": 1, "max_position_embeddings": 66}
GPT = {"vocab_size": 99, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": None}
TWO_KEYS = {**SIZES, "num_key_value_heads": 2}
STAGES = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}

#: As `transformers_models.MODELS`.
ENCODERS = {
    "roberta": ("RobertaModel", PADDED_BY_ONE),
    "distilbert": (
        "DistilBertModel",
        {"vocab_size": 99, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
        | {"max_position_embeddings": 64, "pad_token_id": 0},
    ),
    "electra": ("ElectraModel", {**SIZES, "embedding_size": 32}),
    "albert": ("AlbertModel", {**SIZES, "embedding_size": 16}),
    "mpnet": ("MPNetModel", PADDED_BY_ONE),
    "deberta_v2": (
        "DebertaV2Model",
        {**SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
        | {"position_buckets": 8},
    ),
    "modernbert": (
        "ModernBertModel",
        {**SIZES, "sep_token_id": 2, "cls_token_id": 3, "local_attention": 4},
    ),
}
DECODERS = {
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "mixtral": (
        "MixtralForCausalLM",
        {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1}
        | {"experts_implementation": "eager"},
    ),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", GROUPED),
    "gemma3": (
        "Gemma3ForCausalLM",
        {**GROUPED, "sliding_window": 4, "query_pre_attn_scalar": 8},
    ),
    "phi": ("PhiForCausalLM", SIZES),
    "phi3": ("Phi3ForCausalLM", TWO_KEYS),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "granite": ("GraniteForCausalLM", GROUPED),
    "stablelm": ("StableLmForCausalLM", TWO_KEYS),
    "cohere": ("CohereForCausalLM", GROUPED),
    "gpt_neox": ("GPTNeoXForCausalLM", SIZES),
    "gptj": ("GPTJForCausalLM", {**GPT, "n_embd": 32, "n_positions": 64, "rotary_dim": 4}),
    "opt": (
        "OPTForCausalLM",
        {k: v for k, v in SIZES.items() if k != "intermediate_size"}
        | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "bloom": ("BloomForCausalLM", {**GPT, "hidden_size": 32, "pad_token_id": 0}),
    "falcon": ("FalconForCausalLM", {**SIZES, "new_decoder_architecture": False}),
    "starcoder2": ("Starcoder2ForCausalLM", GROUPED),
    "smollm3": ("SmolLM3ForCausalLM", GROUPED),
}
IN_TWO_PARTS = {
    "bart": (
        "BartModel",
        {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48}
        | {"decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 0}
        | {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
}
OF_IMAGES = {
    "deit": ("DeiTModel", PATCHES),
    "beit": ("BeitModel", {**PATCHES, "use_relative_position_bias": True}),
    "dinov2": ("Dinov2Model", {**PATCHES, "mlp_ratio": 2}),
    "segformer": (
        "SegformerModel",
        {**STAGES, "num_attention_heads": [1, 2, 2, 2], "sr_ratios": [2, 2, 1, 1]}
        | {"strides": [2, 2, 1, 1]},
    ),
}
MORE = {**ENCODERS, **DECODERS, **IN_TWO_PARTS, **OF_IMAGES}

#: Models whose norms and attention are, in transformers too, the code of another one here; those of
#: the last two lines are written once more, and differ in nothing that a graph shows.
ALIKE = {"roberta", "electra", "mixtral", "qwen2", "gemma", "phi3", "olmo2", "granite", "cohere"}
ALIKE |= {"starcoder2", "smollm3", "gptj", "deit", "dinov2"}
ALIKE |= {"distilbert", "albert", "mistral", "stablelm", "beit", "phi", "mpnet", "opt"}
ALIKE |= {"gpt2", "vit", "qwen3"}


def but_alike(names, others=()):
    """Names of models; those that are `ALIKE`, and others, are for the exhaustive run."""
    return but_seldom(names, {*ALIKE, *others})
