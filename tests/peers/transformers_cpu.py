#!/usr/bin/env python3
"""The same model in transformers on the CPU: the peer of `furrow-bench model`, which starts it and tells it
what to do next.

    transformers_cpu.py save DIR [97m|38m]           write a random checkpoint that both read: DIR/float32 and
                                                     DIR/bfloat16 (default: 97m)
    transformers_cpu.py serve DIR DTYPE THREADS      load it; then each line of the input is a task, each line
                                                     of the output its seconds

Tasks: `decode BATCH PROMPT STEPS` (greedy, all sequences in one call a step; a short prompt before and two
steps to warm up are not counted) and `prefill TOKENS` (one sequence, last logits only). Needs torch and
transformers. Its dt floor is taken out, as in the published model: limits are (0, inf).
"""

import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

# Mixers in the published order, scaled down: inner width twice the hidden size, state 128, 8 groups.
COMMON = {
    "head_dim": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "mlp_hidden_act": "relu2",
    "time_step_limit": (0.0, float("inf")),
    "max_position_embeddings": 8192,
}
SHAPES = {
    "97m": {
        "hybrid_override_pattern": "M-M-M*-M-M-M*-M-",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "vocab_size": 16384,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "mamba_num_heads": 24,
    },
    # 38,428,448 parameters: the one of `furrow-bench llama`.
    "38m": {
        "hybrid_override_pattern": "M-M-M*-M-M-M*-",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "vocab_size": 8192,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "mamba_num_heads": 16,
    },
}


def unfloored(model):
    for layer in model.model.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (0.0, float("inf"))
    return model.eval()


def ids(model, batch, tokens):
    return torch.randint(
        3, model.config.vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(11)
    )


def decode(model, batch, prompt, steps):
    out = model(input_ids=ids(model, batch, prompt), use_cache=True, logits_to_keep=1)
    past, token = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
    for step in range(steps + 2):
        if step == 2:
            began = time.perf_counter()
        token = (
            model(input_ids=token, past_key_values=past, use_cache=True)
            .logits[:, -1]
            .argmax(-1, keepdim=True)
        )
    return time.perf_counter() - began


def prefill(model, tokens):
    began = time.perf_counter()
    model(input_ids=ids(model, 1, tokens), use_cache=True, logits_to_keep=1)
    return time.perf_counter() - began


def serve(folder, dtype, threads):
    torch.set_num_threads(threads)
    model = unfloored(NemotronHForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)))
    print(
        json.dumps(
            {"ready": True, "torch": torch.__version__, "weights": sum(p.numel() for p in model.parameters())}
        ),
        flush=True,
    )
    tasks = {"decode": decode, "prefill": prefill}
    with torch.inference_mode():
        for line in sys.stdin:
            task, *numbers = line.split()
            print(json.dumps({"seconds": tasks[task](model, *map(int, numbers))}), flush=True)


def main():
    what, folder, *rest = sys.argv[1:]
    if what == "save":
        torch.manual_seed(7)
        model = NemotronHForCausalLM(NemotronHConfig(**COMMON, **SHAPES[rest[0] if rest else "97m"]))
        for dtype in (torch.float32, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            model.to(dtype).save_pretrained(os.path.join(folder, name))
    else:
        serve(folder, rest[0], int(rest[1]))


if __name__ == "__main__":
    main()
