#!/usr/bin/env python3
"""The published model in transformers, and PyTorch's own operations at its sizes, on one GPU: the peer of
`furrow-bench gpu`.

    transformers_gpu.py measure [--device cuda] [--seconds 480] [--times 10]
        print a JSON line per figure, as `furrow-bench gpu --json` does
    transformers_gpu.py measure --dry-run
        the same on the CPU, at sizes that take a minute
    transformers_gpu.py beside OURS PEERS
        print figures of the same name side by side

A figure has `what`, `seconds` (the median), `fits`, `rate` and `unit`, and, where there is a lower bound,
`floor_seconds` and `share`: bytes and operations, counted from the tensors that are there, at the copy and
product rates measured first, in the same run. `by` and `path` say who took that time. Names are those of
`furrow-bench gpu`, so that `beside` finds both.

Weights are noise; a decode step's past is noise put into the cache, for reading it in would take transformers
minutes. Its fast kernels (`mamba-ssm`, `causal-conv1d`) are taken by itself where they are installed; `path`
says whether they were. Needs torch and transformers.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from functools import partial
from typing import ClassVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Mixers in the published order.
PUBLISHED = {
    "hybrid_override_pattern": "M-M-M-M*-" * 6 + "M-M-M-M-",
    "hidden_size": 5120,
    "intermediate_size": 20480,
    "vocab_size": 131072,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "mlp_hidden_act": "relu2",
    "time_step_limit": (0.0, float("inf")),
    "max_position_embeddings": 131072,
}
SMALL = PUBLISHED | {
    "hybrid_override_pattern": "M-M*-",
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "chunk_size": 16,
}


class Cases:
    """Sizes that are measured, those of `furrow-bench gpu`: batches, contexts, prefills (new tokens behind
    none), tower, reference rates."""

    config: ClassVar = PUBLISHED
    batches, contexts = (1, 8, 32, 100), (0, 2048, 8192)
    # 3 and 7 tiles and 60 tokens of text.
    prefills = (828, 1852)
    rows = (1, 100, 1852)
    tower: ClassVar = {"tokens": 1040, "hidden": 1280, "heads": 16, "inner": 5120}
    tiles = (3, 7)
    copied, side = 1 << 30, 8192


class SmallCases(Cases):
    config: ClassVar = SMALL
    batches, contexts = (1, 3), (0, 20)
    prefills = (17,)
    rows = (1, 5)
    tower: ClassVar = {"tokens": 20, "hidden": 32, "heads": 4, "inner": 64}
    tiles = (2,)
    copied, side = 1 << 16, 64


class Measure:
    """Measures work on a device, and prints the results."""

    def __init__(self, torch, device, times, seconds):
        self.torch, self.device, self.times = torch, torch.device(device), times
        self.end = time.monotonic() + seconds
        self.bandwidth = self.flops = None

    def wait(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def median(self, work, warm_up=3, times=None):
        """Seconds from giving the work to its end: launches included, as `furrow-bench gpu` measures."""
        taken = []
        for number in range(warm_up + (times or self.times)):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            if number >= warm_up:
                taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    def figure(self, what, work, count, unit, moved=0.0, operations=0.0, by="torch", path="eager", **median):
        """Measures one figure; one that does not fit or fails is printed as such, and the next one
        follows."""
        line = {"what": what, "by": by, "path": path, "unit": unit, "fits": True, "seconds": None}
        if time.monotonic() > self.end:
            emit(line | {"note": "no time was left"})
            return
        try:
            seconds = self.median(work, **median)
        except self.torch.OutOfMemoryError:
            self.torch.cuda.empty_cache()
            emit(line | {"fits": False})
            return
        except Exception as error:  # a peer that fails must not hide the others
            emit(line | {"note": f"{type(error).__name__}: {error}"[:300]})
            return
        line |= {"seconds": seconds, "rate": count / seconds}
        if self.bandwidth and (moved or operations):
            floor = max(moved / self.bandwidth, operations / self.flops)
            line |= {"floor_seconds": floor, "share": floor / seconds}
        emit(line)

    def noise(self, *shape, dtype=None, scale=1.0):
        return self.torch.randn(*shape, device=self.device, dtype=dtype or self.torch.bfloat16) * scale


def emit(line):
    print(json.dumps(line), flush=True)


def rates(measure, cases):
    """What the device reaches by itself: a large copy, and a large product in bfloat16 of values that are not
    zeros."""
    torch = measure.torch
    source = torch.randint(0, 255, (cases.copied,), dtype=torch.uint8, device=measure.device)
    target = torch.empty_like(source)
    measure.bandwidth = 2 * cases.copied / measure.median(partial(target.copy_, source))
    del source, target
    one, other = measure.noise(cases.side, cases.side), measure.noise(cases.side, cases.side)
    measure.flops = 2 * cases.side**3 / measure.median(lambda: one @ other)
    name = torch.cuda.get_device_name() if measure.device.type == "cuda" else "cpu"
    emit(
        {
            "gpu": name,
            "torch": torch.__version__,
            "copy_bytes_per_second": measure.bandwidth,
            "product_flops": measure.flops,
        }
    )


def products(measure, cases):
    """The matrix products of a layer of each kind, at a decode's and a prefill's rows."""
    c = cases.config
    inner = c["mamba_num_heads"] * c["mamba_head_dim"]
    mixed = inner + 2 * c["n_groups"] * c["ssm_state_size"]
    heads = [c[name] * c["head_dim"] for name in ("num_attention_heads", "num_key_value_heads")]
    hidden = c["hidden_size"]
    shapes = {
        "in_proj": (hidden, inner + mixed + c["mamba_num_heads"]),
        "out_proj": (inner, hidden),
        "qkv_proj": (hidden, heads[0] + 2 * heads[1]),
        "o_proj": (heads[0], hidden),
        "up_proj": (hidden, c["intermediate_size"]),
        "down_proj": (c["intermediate_size"], hidden),
        "lm_head": (hidden, c["vocab_size"]),
    }
    for name, (inputs, outputs) in shapes.items():
        weight = measure.noise(outputs, inputs, scale=inputs**-0.5)
        for rows in cases.rows if name != "lm_head" else cases.rows[:-1]:
            given = measure.noise(rows, inputs)
            measure.figure(
                f"product {name}, {rows} rows",
                partial(measure.torch.nn.functional.linear, given, weight),
                count=rows,
                unit="rows/s",
                moved=2.0 * (inputs * outputs + rows * (inputs + outputs)),
                operations=2.0 * rows * inputs * outputs,
            )


def state_update(measure, cases):
    """One Mamba-2 layer's recurrence for one new token of each session: plainly, fused by the compiler, and
    by mamba-ssm where that is there."""
    torch, c = measure.torch, cases.config
    heads, size, states, groups = (
        c[key] for key in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")
    )

    def plain(state, x, dt, a, b, c, d):
        def of_heads(shared):
            return shared.float().repeat_interleave(heads // groups, 1).unsqueeze(2)

        dt, x = torch.nn.functional.softplus(dt.float()), x.float()
        state.mul_((dt * a).exp()[..., None, None])
        state.add_((dt[..., None] * x)[..., None] * of_heads(b))
        return (state * of_heads(c)).sum(-1) + d[:, None] * x

    ways = {"eager": plain}
    if measure.device.type == "cuda":
        ways["compiled"] = torch.compile(plain, dynamic=False)
    if importlib.util.find_spec("mamba_ssm"):
        ways["mamba_ssm"] = of_mamba_ssm(size, states)
    for batch in cases.batches:
        state = torch.zeros(batch, heads, size, states, device=measure.device)
        x, dt = measure.noise(batch, heads, size), measure.noise(batch, heads)
        b, c_ = measure.noise(batch, groups, states), measure.noise(batch, groups, states)
        a, d = -torch.rand(heads, device=measure.device) - 0.5, torch.rand(heads, device=measure.device)
        for path, way in ways.items():
            measure.figure(
                f"state update, batch {batch}",
                partial(way, state, x, dt, a, b, c_, d),
                count=batch,
                unit="tokens/s",
                moved=2.0 * state.numel() * 4,
                path=path,
            )


def of_mamba_ssm(size, states):
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    def update(state, x, dt, a, b, c, d):
        def wide(of_heads):
            return of_heads[..., None].expand(*of_heads.shape, size)

        a = wide(a)[..., None].expand(*a.shape, size, states)
        return selective_state_update(state, x, wide(dt), a, b, c, D=wide(d), dt_softplus=True)

    return update


def attention(measure, cases):
    """One new token of each session against its context, by PyTorch's fused attention."""
    c, attend = cases.config, measure.torch.nn.functional.scaled_dot_product_attention
    heads, kv_heads, size = (c[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    for context in filter(None, cases.contexts):
        for batch in cases.batches:
            # The heads of a group as rows: keys and values are read once.
            query = measure.noise(batch, kv_heads, heads // kv_heads, size)
            try:
                key, value = (measure.noise(batch, kv_heads, context, size) for _ in range(2))
            except measure.torch.OutOfMemoryError:
                continue
            measure.figure(
                f"attention, batch {batch}, context {context}",
                partial(attend, query, key, value),
                count=batch,
                unit="tokens/s",
                moved=2.0 * (key.numel() + value.numel()),
                operations=4.0 * heads * size * batch * context,
            )


def tower(measure, cases):
    """A block of the vision tower: LayerNorm, attention within a tile, LayerNorm, MLP."""
    torch, sizes = measure.torch, cases.tower
    layer = torch.nn.TransformerEncoderLayer(
        sizes["hidden"], sizes["heads"], sizes["inner"], 0.0, "gelu", batch_first=True, norm_first=True
    )
    layer = layer.to(measure.device, torch.bfloat16).eval()
    matrices = sum(weight.numel() for weight in layer.parameters() if weight.dim() > 1)
    for tiles in cases.tiles:
        rows = measure.noise(tiles, sizes["tokens"], sizes["hidden"])
        measure.figure(
            f"tower block, {tiles} tiles",
            partial(layer, rows),
            count=tiles,
            unit="tiles/s",
            moved=2.0 * (matrices + 2 * rows.numel()),
            operations=2.0 * tiles * sizes["tokens"] * (matrices + 2 * sizes["tokens"] * sizes["hidden"]),
        )


def whole(measure, cases):
    """transformers' own nemotron_h, decode and prefill."""
    torch = measure.torch
    model = noise_model(measure, cases.config)
    fast = all(importlib.util.find_spec(name) for name in ("mamba_ssm", "causal_conv1d"))
    common = {
        "by": "transformers",
        "path": "fast kernels" if fast else "eager",
        "warm_up": 2,
        "times": min(measure.times, 5),
    }
    read = matrix_bytes(model)
    for context in cases.contexts:
        for batch in cases.batches:
            what, count = f"decode, batch {batch}, context {context}", {"count": batch, "unit": "tokens/s"}
            try:
                step, kept = decode_step(measure, model, batch, context)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                emit(
                    {
                        "what": what,
                        "by": "transformers",
                        "path": common["path"],
                        "unit": "tokens/s",
                        "fits": False,
                        "seconds": None,
                    }
                )
                continue
            measure.figure(what, step, moved=read + kept, operations=read * batch, **count, **common)
            del step
    for new in cases.prefills:
        ids = torch.ones(1, new, dtype=torch.long, device=measure.device)
        measure.figure(
            f"prefill, {new} tokens behind 0",
            partial(model, input_ids=ids, use_cache=True, logits_to_keep=1),
            count=new,
            unit="tokens/s",
            moved=read,
            operations=read * new,
            **common,
        )


def noise_model(measure, config):
    """The model on its device, its time step limits as published, its weights noise of the size that trained
    ones have."""
    import transformers

    torch = measure.torch
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = transformers.NemotronHForCausalLM(transformers.NemotronHConfig(**config))
    finally:
        torch.set_default_dtype(before)
    model = model.to_empty(device=measure.device).to(torch.bfloat16).eval()
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, weight.shape[-1] ** -0.5)
        elif name.endswith("A_log"):
            weight.uniform_(0.0, 1.0)
        else:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
    unfloored(model)
    weights = sum(w.numel() for w in model.parameters())
    emit({"note": f"transformers {transformers.__version__}, {weights:.4g} weights"})
    return model


def matrix_bytes(model):
    """Bytes that a batch reads: every matrix but the embedding table. As many operations go into each row:
    two a weight of two bytes."""
    table = model.get_input_embeddings().weight
    return float(sum(2 * w.numel() for w in model.parameters() if w.dim() > 1 and w is not table))


def decode_step(measure, model, batch, context):
    """A step of `batch` sequences behind `context` tokens, and the bytes of their caches that it moves:
    states both ways, keys and values once."""
    torch = measure.torch
    # One sequence is read and its states copied: its slow path fills prompts up to whole chunks, and has no
    # memory for 100 of them.
    cache = model(
        input_ids=torch.ones(1, 2, dtype=torch.long, device=measure.device), use_cache=True, logits_to_keep=1
    ).past_key_values
    moved = 0.0
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None and layer.keys.numel():
            shape = (batch, layer.keys.shape[1], max(context, 2), layer.keys.shape[3])
            layer.keys, layer.values = measure.noise(*shape), measure.noise(*shape)
            moved += 2.0 * layer.keys.numel() * layer.keys.element_size()
        for name in ("conv_states", "recurrent_states"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, copies(getattr(layer, name), batch))
            for state in values(getattr(layer, name, None)):
                moved += 2.0 * state.numel() * state.element_size()
    token = torch.ones(batch, 1, dtype=torch.long, device=measure.device)

    def step():
        # As in a serving loop: the sampled token goes into the next step, and the cache grows by one.
        nonlocal token
        token = (
            model(input_ids=token, past_key_values=cache, use_cache=True)
            .logits[:, -1]
            .argmax(-1, keepdim=True)
        )

    return step, moved


# The checkpoint that both sides read a prompt of, whole and token by token.
# In this repository, or where FURROW_REPOSITORY says it is.
REPOSITORY = os.environ.get("FURROW_REPOSITORY") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "../.."
)
ORACLE = os.path.join(REPOSITORY, "crates/model/tests/oracle/vl_names_bf16")


def oracle_json(name):
    with open(os.path.join(ORACLE, name), encoding="utf-8") as file:
        return json.load(file)


def gap(measure, _cases):
    """How far the log-probabilities of a prompt's tokens are apart, read whole and token by token: what a
    trainer sees of a rollout in bfloat16."""
    import safetensors.torch
    import transformers

    torch = measure.torch
    config = oracle_json("config.json")["llm_config"] | {"time_step_limit": (0.0, float("inf"))}
    config = {
        key: value
        for key, value in config.items()
        if key not in ("architectures", "model_type", "torch_dtype")
    }
    model = transformers.NemotronHForCausalLM(transformers.NemotronHConfig(**config))
    weights = {}
    for shard in sorted(set(oracle_json("model.safetensors.index.json")["weight_map"].values())):
        weights |= safetensors.torch.load_file(os.path.join(ORACLE, shard))
    model.load_state_dict(
        {
            name.removeprefix("language_model.").replace("backbone.", "model."): value
            for name, value in weights.items()
        }
    )
    model = unfloored(model.to(measure.device, torch.bfloat16).eval())
    ids = torch.tensor([oracle_json("inputs.json")["prompt_a"]], device=measure.device)
    whole = model(input_ids=ids).logits
    # The first alone is a prompt; each after it goes the way of decode.
    out = model(input_ids=ids[:, :1], use_cache=True)
    rows, cache = [out.logits], out.past_key_values
    rows += [
        model(input_ids=ids[:, at : at + 1], past_key_values=cache, use_cache=True).logits
        for at in range(1, ids.shape[1])
    ]

    def of_next(logits):
        return logits.float().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]

    apart = (of_next(whole) - of_next(torch.cat(rows, 1))).abs().sort().values.tolist()

    def quantile(share):
        return apart[min(int(share * len(apart)), len(apart) - 1)]

    emit(
        {
            "what": "decode against prefill, log-prob",
            "by": "transformers",
            "unit": "nats",
            "p50": quantile(0.5),
            "p99": quantile(0.99),
            "mean": statistics.mean(apart),
        }
    )


def unfloored(model):
    for layer in model.model.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (0.0, float("inf"))
    return model


def copies(states, batch):
    """The states of one sequence, as many times."""
    if isinstance(states, dict):
        return {key: copies(state, batch) for key, state in states.items()}
    if isinstance(states, (list, tuple)):
        return [copies(state, batch) for state in states]
    return None if states is None else states.repeat_interleave(batch, dim=0)


def values(states):
    """Tensors of a layer's states, however they are kept."""
    kept = (
        states.values()
        if isinstance(states, dict)
        else states
        if isinstance(states, (list, tuple))
        else [states]
    )
    return [state for state in kept if state is not None]


def take(args):
    if args.dry_run:
        # Without tiles, which torch takes for granted on processors that only claim to have them.
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    import torch

    device = "cpu" if args.dry_run else args.device
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU: install a build with CUDA, or try --dry-run")
    torch.manual_seed(7)
    cases = SmallCases if args.dry_run else Cases
    measure = Measure(torch, device, args.times, args.seconds)
    with torch.inference_mode():
        for part in (rates, gap, whole, state_update, attention, tower, products):
            part(measure, cases)
            if measure.device.type == "cuda":
                torch.cuda.empty_cache()


def lines_of(path):
    """Figures of a report by name, and gaps by name: its lines that are JSON objects with a name and a time
    or quantiles; the fastest of several ways."""
    timings, gaps = {}, {}
    with open(path, encoding="utf-8") as report:
        for line in report:
            # The test harness prints its own text before the first line.
            at = line.find("{")
            try:
                figure = json.loads(line[at:]) if at >= 0 else {}
            except ValueError:
                continue
            what, seconds = figure.get("what"), figure.get("seconds")
            if "p50" in figure:
                gaps[what] = figure
            if what and seconds and seconds < timings.get(what, {"seconds": float("inf")})["seconds"]:
                timings[what] = figure
    return timings, gaps


def beside(args):
    (ours, our_gaps), (peers, peer_gaps) = lines_of(args.ours), lines_of(args.peers)
    both = [what for what in ours if what in peers]
    if not both:
        sys.exit(f"{args.ours} and {args.peers} have no figure in common")
    print(f"{'':44}{'ours':>12}{'peer':>12}{'times':>8}  by")
    for what in both:
        our, peer = ours[what]["seconds"], peers[what]["seconds"]
        by = f"{peers[what].get('by')}, {peers[what].get('path')}"
        print(f"{what:44}{our * 1e3:9.3f} ms{peer * 1e3:9.3f} ms{peer / our:8.1f}  {by}")
    for what in set(our_gaps) & set(peer_gaps):
        quantiles = [
            f"p50 {side[what]['p50']:.4f}, p99 {side[what]['p99']:.4f}" for side in (our_gaps, peer_gaps)
        ]
        print(f"{what}: ours {quantiles[0]}; the peer's {quantiles[1]} nats")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--device", default="cuda", help="torch device (default: %(default)s)")
    measuring.add_argument("--dry-run", action="store_true", help="measure small sizes on the CPU")
    measuring.add_argument(
        "--seconds",
        type=float,
        default=480.0,
        help="seconds after which no further figure is begun (default: %(default)s)",
    )
    measuring.add_argument(
        "--times", type=int, default=10, help="measurements of each figure (default: %(default)s)"
    )
    measuring.set_defaults(run=take)
    comparing = commands.add_parser("beside")
    comparing.add_argument("ours")
    comparing.add_argument("peers")
    comparing.set_defaults(run=beside)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
