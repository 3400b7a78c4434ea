"""Models that the check of a GPU makes where it runs, with Python's own library alone.

    models.py random FOLDER --bits 4|8 [--empty]   Llama-3.2-1B's shape, MLX affine in groups of 64
    models.py widen FOLDER FROM                     FROM's 4-bit weights, held in 8 bits: the same numbers
    models.py join FOLDER FROM                      FROM with its weights in parts, put together

Random weights have a mean of nothing: a bias is -7.5 (or -127.5) times its scale. With --empty the file
has its size but no content, which is enough to compile code for it.
"""

import argparse
import json
import random
import shutil
import struct
from pathlib import Path

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FFN, VOCABULARY = 2048, 16, 32, 8, 64, 8192, 128256
CONTEXT, EPSILON, THETA, GROUP, SEED = 8192, 1e-5, 500000.0, 64, 20260401
KV = KV_HEADS * HEAD
LAYER = [
    ("input_layernorm", (HIDDEN,)),
    ("self_attn.q_proj", (HIDDEN, HIDDEN)),
    ("self_attn.k_proj", (KV, HIDDEN)),
    ("self_attn.v_proj", (KV, HIDDEN)),
    ("self_attn.o_proj", (HIDDEN, HIDDEN)),
    ("post_attention_layernorm", (HIDDEN,)),
    ("mlp.gate_proj", (FFN, HIDDEN)),
    ("mlp.up_proj", (FFN, HIDDEN)),
    ("mlp.down_proj", (HIDDEN, FFN)),
]
# Different scales before they repeat, and bytes that are drawn at a time.
SCALES = 1 << 15
AT_ONCE = 1 << 24


def config(bits):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "vocab_size": VOCABULARY,
        "torch_dtype": "float16",
        "quantization": {"group_size": GROUP, "bits": bits},
    }


def tensors():
    yield "model.embed_tokens", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        for name, shape in LAYER:
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm", (HIDDEN,)


def announced(bits):
    """Name, type, shape and kind of content of every tensor."""
    for name, shape in tensors():
        if len(shape) == 1:
            yield f"{name}.weight", "F16", list(shape), "one"
            continue
        rows, columns = shape
        yield f"{name}.weight", "U32", [rows, columns * bits // 32], "values"
        yield f"{name}.scales", "F16", [rows, columns // GROUP], "scales"
        yield f"{name}.biases", "F16", [rows, columns // GROUP], "biases"


def size_of(dtype, shape):
    size = {"U32": 4, "F16": 2, "BF16": 2, "F32": 4}[dtype]
    for extent in shape:
        size *= extent
    return size


def start(path, announced):
    """A safetensors file with its header, to which content is written in order."""
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, dtype, shape in announced:
        size = size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    file = open(path, "wb")
    file.write(struct.pack("<Q", len(text)) + text)
    return file, at


def repeated(file, block, size):
    while size > 0:
        file.write(block[:size])
        size -= len(block)


def make_random(folder, bits, empty):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(bits), indent=2) + "\n")
    told = list(announced(bits))
    file, total = start(folder / "model.safetensors", [t[:3] for t in told])
    with file:
        if empty:
            file.truncate(file.tell() + total)
            return
        # A uniform 4-bit weight deviates by 4.3 of its scale, an 8-bit one by 74: about 0.02 both.
        draw = random.Random(SEED)
        middle, scale = (7.5, 0.0046) if bits == 4 else (127.5, 0.00027)
        scales = [scale * draw.uniform(0.75, 1.25) for _ in range(SCALES)]
        blocks = {
            "one": struct.pack("<e", 1.0) * 4096,
            "scales": struct.pack(f"<{SCALES}e", *scales),
            "biases": struct.pack(f"<{SCALES}e", *(-middle * s for s in scales)),
        }
        for _, dtype, shape, kind in told:
            size = size_of(dtype, shape)
            if kind != "values":
                repeated(file, blocks[kind], size)
                continue
            for at in range(0, size, AT_ONCE):
                file.write(draw.randbytes(min(AT_ONCE, size - at)))


def read_header(file):
    length = struct.unpack("<Q", file.read(8))[0]
    return json.loads(file.read(length)), 8 + length


def widen(folder, source):
    """4-bit values one a byte, in the order they had; 8-bit ones, scales and all else as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, folder / path.name)
    own = json.loads((source / "config.json").read_text())
    quantization = own["quantization"]
    assert quantization["bits"] == 4, "the weights are not in 4 bits"
    others = [name for name, of in quantization.items() if isinstance(of, dict)]
    quantization["bits"] = 8
    (folder / "config.json").write_text(json.dumps(own, indent=2) + "\n")
    pairs = [bytes((byte & 15, byte >> 4)) for byte in range(256)]
    with open(source / "model.safetensors", "rb") as old:
        header, first = read_header(old)
        header.pop("__metadata__", None)
        order = sorted(header, key=lambda name: header[name]["data_offsets"][0])

        def wide(name):
            return header[name]["dtype"] == "U32" and name.removesuffix(".weight") not in others

        def told():
            for name in order:
                shape = list(header[name]["shape"])
                if wide(name):
                    shape[1] *= 2
                yield name, header[name]["dtype"], shape

        new, _ = start(folder / "model.safetensors", told())
        with new:
            for name in order:
                begin, end = header[name]["data_offsets"]
                old.seek(first + begin)
                content = old.read(end - begin)
                new.write(b"".join(map(pairs.__getitem__, content)) if wide(name) else content)


def join(folder, source):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "model.safetensors", "wb") as out:
        for path in sorted(source.iterdir()):
            if path.name.startswith("model.safetensors."):
                out.write(path.read_bytes())
            else:
                shutil.copy(path, folder / path.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["random", "widen", "join"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--bits", type=int, choices=[4, 8], default=4)
    parser.add_argument("--empty", action="store_true")
    args = parser.parse_args()
    if args.what == "random":
        make_random(args.folder, args.bits, args.empty)
    else:
        {"widen": widen, "join": join}[args.what](args.folder, args.source)


if __name__ == "__main__":
    main()
