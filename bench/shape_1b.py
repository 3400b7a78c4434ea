"""Writes a model of Llama-3.2-1B's shape with random weights, as the same numbers in three forms:

    FOLDER/mlx/          MLX affine, 4 bits in groups of 64: what halfhitch reads
    FOLDER/q4_0.gguf     what llama.cpp reads fastest; the same bytes a weight
    FOLDER/q4_1.gguf     what holds any affine weight of groups of 32

All three stand for exactly the same weights: every bias is -8 times its scale, which is what Q4_0 means,
and a group of 64 is two blocks of 32 with the same scale. Scales are small enough that nothing overflows
and large enough that the likeliest token is not a matter of rounding. The seed is fixed; a tensor is
made and written at a time.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu"))
import models
from models import CONTEXT, EPSILON, FFN, GROUP, HEAD, HEADS, HIDDEN, KV, KV_HEADS, LAYERS, SEED, THETA, VOCABULARY

# Scale of a uniform 4-bit weight: its deviation is 4.3 times this, about 0.02.
SCALE = 0.0046

# Name in a checkpoint, name in GGUF, shape, heads by which GGUF orders rows.
LAYER = [
    ("input_layernorm", "attn_norm", (HIDDEN,), 0),
    ("self_attn.q_proj", "attn_q", (HIDDEN, HIDDEN), HEADS),
    ("self_attn.k_proj", "attn_k", (KV, HIDDEN), KV_HEADS),
    ("self_attn.v_proj", "attn_v", (KV, HIDDEN), 0),
    ("self_attn.o_proj", "attn_output", (HIDDEN, HIDDEN), 0),
    ("post_attention_layernorm", "ffn_norm", (HIDDEN,), 0),
    ("mlp.gate_proj", "ffn_gate", (FFN, HIDDEN), 0),
    ("mlp.up_proj", "ffn_up", (FFN, HIDDEN), 0),
    ("mlp.down_proj", "ffn_down", (HIDDEN, FFN), 0),
]


def tensors():
    yield "model.embed_tokens", "token_embd", (VOCABULARY, HIDDEN), 0
    for layer in range(LAYERS):
        for name, other, shape, heads in LAYER:
            yield f"model.layers.{layer}.{name}", f"blk.{layer}.{other}", shape, heads
    yield "model.norm", "output_norm", (HIDDEN,), 0


def draw(index, shape):
    """Values 1 to 15, as many below 8 as above (a mean other than 0 would drown the rest, and always the
    same token would be the likeliest), and the scales of their groups."""
    rng = np.random.Generator(np.random.PCG64([SEED, index]))
    rows, columns = shape
    values = rng.integers(1, 16, size=shape, dtype=np.uint8)
    scales = SCALE * rng.uniform(0.75, 1.25, size=(rows, columns // GROUP))
    return values, scales.astype(np.float16)


class Safetensors:
    """A safetensors file, a tensor at a time, in the order that was announced."""

    def __init__(self, path, announced):
        header, at = {"__metadata__": {"format": "mlx"}}, 0
        for name, dtype, shape, size in announced:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.file = open(path, "wb")
        self.file.write(struct.pack("<Q", len(text)) + text)

    def write(self, array):
        self.file.write(np.ascontiguousarray(array).data)

    def close(self):
        self.file.close()


def announced():
    for name, _, shape, _ in tensors():
        if len(shape) == 1:
            yield f"{name}.weight", "F16", list(shape), 2 * shape[0]
            continue
        rows, columns = shape
        yield f"{name}.weight", "U32", [rows, columns // 8], rows * columns // 2
        for part in ("scales", "biases"):
            groups = columns // GROUP
            yield f"{name}.{part}", "F16", [rows, groups], 2 * rows * groups


def write_config(folder):
    (folder / "config.json").write_text(json.dumps(models.config(4), indent=2) + "\n")


def open_gguf(path, kind):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(THETA)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    block = 18 if kind == gguf.GGMLQuantizationType.Q4_0 else 20
    for _, name, shape, _ in tensors():
        if len(shape) == 1:
            info = (shape, np.dtype(np.float32), 4 * shape[0], None)
        else:
            width = shape[1] // 32 * block
            info = ((shape[0], width), np.dtype(np.uint8), shape[0] * width, kind)
        writer.add_tensor_info(f"{name}.weight", *info)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


def blocks(values, scales, heads, with_minimum):
    """Q4_0 or Q4_1 bytes of a matrix: GGUF has the two halves of a rotated head interleaved."""
    rows, columns = values.shape
    if heads:
        order = np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)
        values, scales = values[order], scales[order]
    parts = values.reshape(rows, columns // 32, 2, 16)
    nibbles = parts[:, :, 0] | parts[:, :, 1] << 4
    each = np.repeat(scales, GROUP // 32, axis=1)[:, :, None]
    head = [each] + ([np.float16(-8) * each] if with_minimum else [])
    head = np.concatenate(head, axis=2).view(np.uint8)
    return np.concatenate([head, nibbles], axis=2).reshape(rows, -1)


def main():
    folder = Path(sys.argv[1])
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "mlx").mkdir(parents=True)
    print(f"writing 1.2 billion random weights to {folder}", file=sys.stderr)
    write_config(folder / "mlx")
    mlx = Safetensors(folder / "mlx" / "model.safetensors", announced())
    q4_0 = open_gguf(folder / "q4_0.gguf", gguf.GGMLQuantizationType.Q4_0)
    q4_1 = open_gguf(folder / "q4_1.gguf", gguf.GGMLQuantizationType.Q4_1)
    for index, (_, _, shape, heads) in enumerate(tensors()):
        if len(shape) == 1:
            mlx.write(np.ones(shape, np.float16))
            for writer in (q4_0, q4_1):
                writer.write_tensor_data(np.ones(shape, np.float32))
            continue
        values, scales = draw(index, shape)
        mlx.write(values[:, 0::2] | values[:, 1::2] << 4)
        mlx.write(scales)
        mlx.write(np.float16(-8) * scales)
        q4_0.write_tensor_data(blocks(values, scales, heads, False))
        q4_1.write_tensor_data(blocks(values, scales, heads, True))
    mlx.close()
    q4_0.close()
    q4_1.close()
    (folder / "done").touch()


if __name__ == "__main__":
    main()
