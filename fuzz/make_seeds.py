#!/usr/bin/env python3
"""Writes fuzz/seeds: what the fuzzers start from, small and valid or nearly so.

    fuzz/make_seeds.py

The same bytes at every run. Needs nothing beside Python 3. Chat templates, configurations and a tokenizer
are taken from tests/fixtures; the rest is made here.
"""

import json
import shutil
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "tests" / "fixtures"
SEEDS = HERE / "seeds"


def seed(target: str, name: str, content: bytes | str | dict) -> None:
    """Writes one seed; an object as JSON."""
    if isinstance(content, dict):
        content = json.dumps(content, separators=(",", ":"))
    if isinstance(content, str):
        content = content.encode()
    path = SEEDS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def safetensors(tensors: dict[str, tuple[str, list[int], int]], metadata: bool = False) -> bytes:
    """A file with these tensors: type, shape, bytes."""
    header: dict = {"__metadata__": {"format": "pt"}} if metadata else {}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def checkpoint_headers() -> None:
    one = {"a": ("F32", [2], 8)}
    seed("checkpoint_header", "one", safetensors(one))
    seed("checkpoint_header", "metadata", safetensors(one, metadata=True))
    several = {
        "model.norm.weight": ("BF16", [4], 8),
        "q.weight": ("U32", [1, 4], 16),
        "q.scales": ("F16", [1, 1], 2),
        "q.biases": ("F16", [1, 1], 2),
        "scalar": ("F64", [], 8),
        "empty": ("I8", [0, 3], 0),
        "f8": ("F8_E4M3", [3], 3),
        "f4": ("F4", [4], 2),
    }
    seed("checkpoint_header", "several", safetensors(several))
    text = b'{"a":{"dtype":"F32","shape":[9223372036854775807,2],"data_offsets":[0,8]}}'
    seed("checkpoint_header", "overflow", struct.pack("<Q", len(text)) + text + bytes(8))
    seed("checkpoint_header", "long-header", struct.pack("<Q", 2**63) + b"{}")


def checkpoint_indexes() -> None:
    shard = "model-00001-of-00002.safetensors"
    good = {"metadata": {"total_size": 8}, "weight_map": {"a": shard, "b.c": "x.safetensors"}}
    seed("checkpoint_index", "good", good)
    for i, name in enumerate(["../x.safetensors", "/x.safetensors", "a/b.safetensors", ".", "C:x.safetensors"]):
        seed("checkpoint_index", f"outside-{i}", {"weight_map": {"a": name}})


def configs() -> None:
    for folder in sorted(FIXTURES.glob("tiny/*")) + sorted(FIXTURES.glob("mlx/*")):
        config = json.loads((folder / "config.json").read_text())
        seed("config", folder.name, config)
    llama = json.loads((FIXTURES / "tiny/llama/config.json").read_text())
    for name, change in {
        "eos-list": {"eos_token_id": [1, 2, -1, 99999]},
        "windows": {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
        "large": {"vocab_size": 1 << 24, "hidden_size": 1 << 16, "num_hidden_layers": 1000},
        "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    }.items():
        seed("config", name, llama | change)


def quantizations() -> None:
    # bits, group, rows, columns / 8, stored bits, group log, and types, offsets and contents.
    for bits in [2, 3, 4, 5, 6, 8]:
        for log, group in enumerate([32, 64, 128]):
            scale = [0, 1, 2][log]
            head = bytes([bits, group, 2, 16, bits, log, 3, 0, 7, scale | scale << 2, 0, 5])
            seed("quantization", f"{bits}-bits-of-{group}", head)
    head = bytes([4, 32, 2, 16, 4, 0, 3, 0, 7, 0, 0, 5])
    blocks = {
        "block": {"group_size": 32, "bits": 4, "mode": "affine"},
        "override": {"bits": 8, "group_size": 64, "model.layers.0.mlp.up_proj": {"bits": 4, "group_size": 32}},
        "dense": {"bits": 4, "group_size": 32, "model.layers.0.mlp.up_proj": False},
        "mode": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
        "method": {"quant_method": "gptq", "bits": 4},
    }
    for name, block in blocks.items():
        seed("quantization", name, head + json.dumps(block).encode())


U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value: object) -> bytes:
    """A value with its type in front."""
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + gguf_string(value)
    items = [gguf_value(v) for v in value]
    kind = items[0][:4] if items else struct.pack("<I", U32)
    return struct.pack("<I", ARRAY) + kind + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)


# Number of a type, values and bytes of a block.
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q8_0": (8, 32, 34)}


def gguf(metadata: dict, tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    """A file; shapes have the innermost extent first."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += gguf_string(key) + gguf_value(value)
    data = b""
    for name, (kind, shape) in tensors.items():
        number, block, size = TYPES[kind]
        elements = 1
        for extent in shape:
            elements *= extent
        head += gguf_string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", number, len(data))
        data += bytes(elements // block * size)
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


def llama_gguf(kind: str, arch: str, more: dict, dense: str = "f32") -> bytes:
    """A model of one layer, 32 wide, with 16 tokens."""
    metadata = {
        "general.architecture": arch,
        f"{arch}.block_count": 1,
        f"{arch}.context_length": 64,
        f"{arch}.embedding_length": 32,
        f"{arch}.feed_forward_length": 32,
        f"{arch}.attention.head_count": 2,
        f"{arch}.attention.head_count_kv": 1,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.vocab_size": 16,
    } | more
    matrix = lambda rows: (kind, [32, rows])  # noqa: E731
    tensors = {
        "token_embd.weight": matrix(16),
        "output_norm.weight": ("f32", [32]),
        "blk.0.attn_norm.weight": ("f32", [32]),
        "blk.0.attn_q.weight": matrix(32),
        "blk.0.attn_k.weight": matrix(16),
        "blk.0.attn_v.weight": matrix(16),
        "blk.0.attn_output.weight": matrix(32),
        "blk.0.ffn_norm.weight": ("f32", [32]),
        "blk.0.ffn_gate.weight": matrix(32),
        "blk.0.ffn_up.weight": matrix(32),
        "blk.0.ffn_down.weight": matrix(32),
    }
    if arch == "qwen2":
        for name, rows in [("q", 32), ("k", 16), ("v", 16)]:
            tensors[f"blk.0.attn_{name}.bias"] = (dense, [rows])
    return gguf(metadata, tensors)


def ggufs() -> None:
    pieces = ["<unk>", "<s>", "</s>", "a", "b", "ab", "c", "\u0120", "d", "e", "f", "g", "h", "i", "j", "k"]
    bpe = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * 13,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    spm = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0, -1.0] * 8,
        "tokenizer.ggml.token_type": [2, 3, 3] + [1] * 13,
        "tokenizer.ggml.add_bos_token": True,
    }
    seed("gguf", "llama-q4_0", llama_gguf("q4_0", "llama", bpe))
    seed("gguf", "llama-q4_1", llama_gguf("q4_1", "llama", spm))
    seed("gguf", "llama-bare-q8_0", llama_gguf("q8_0", "llama", {}))
    seed("gguf", "qwen2-q4_0", llama_gguf("q4_0", "qwen2", {"general.alignment": 32}))
    seed("gguf", "empty", gguf({}, {}))
    seed("gguf", "counts", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60))


def manifests() -> None:
    good = {
        "name": "xla-iree:local-task",
        "driver": "local-task",
        "library": "libplugin.so",
        "version": "0.1.0",
        "abi": [1, 0],
        "target": "x86_64-unknown-linux-gnu",
        "components": {"iree": "3.13.0"},
        "sha256": "0" * 64,
    }
    seed("manifest", "good", good)
    seed("manifest", "outside", good | {"library": "../lib.so"})
    seed("manifest", "another-target", good | {"target": "aarch64-apple-darwin"})
    seed("manifest", "unknown", good | {"more": 1})


def tokenizers() -> None:
    tiny = (FIXTURES / "tokenizer/tiny-bpe/tokenizer.json").read_bytes()
    if len(tiny) < 7500:
        seed("tokenizer", "tiny-bpe", tiny + b"\0Hello <|end|> 12 \xc3\xa9")
    vocab = {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "##b": 4, "c": 5, "\u2581": 6, "\u2581a": 7}
    added = [{"id": 0, "content": "<unk>", "single_word": False, "lstrip": False, "rstrip": True,
              "normalized": False, "special": True}]
    models = {
        "bpe": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]], "unk_token": "<unk>",
                "fuse_unk": True, "byte_fallback": False, "dropout": None,
                "continuing_subword_prefix": None, "end_of_word_suffix": None, "ignore_merges": False},
        "unigram": {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
                    "vocab": [[k, -float(v)] for k, v in vocab.items()]},
        "wordpiece": {"type": "WordPiece", "vocab": vocab, "unk_token": "<unk>",
                      "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        "wordlevel": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }
    normalizers = {
        "bpe": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
        "unigram": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "wordpiece": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                      "strip_accents": None, "lowercase": True},
        "wordlevel": {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhAGJjAA=="},
    }
    splitters = {
        "bpe": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\d{1,3}|\\s+(?!\\S)|\\p{L}+"},
             "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "unigram": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "wordpiece": {"type": "BertPreTokenizer"},
        "wordlevel": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "WhitespaceSplit"}]},
    }
    decoders = {
        "bpe": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "unigram": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "wordpiece": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "wordlevel": {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
    }
    post = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<unk>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}}
    for name, model in models.items():
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                 "normalizer": normalizers[name], "pre_tokenizer": splitters[name],
                 "post_processor": post, "decoder": decoders[name], "model": model}
        text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False)
        seed("tokenizer", name, text.encode() + b"\0abba <unk> \xe2\x96\x81a, 12!\xff")


def tokenizer_configs() -> None:
    for name in ["tiny-bpe", "tiny-spm"]:
        text = (FIXTURES / "tokenizer" / name / "tokenizer_config.json").read_bytes()
        seed("tokenizer_config", name, text)
    seed("tokenizer_config", "several", {
        "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None,
        "extra_special_tokens": {"image_token": "<image>"}, "additional_special_tokens": ["<a>"],
        "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ messages }}"},
                          {"name": "tool_use", "template": "{% for m in messages %}{{ m.role }}{% endfor %}"}]})


def cache_entries() -> None:
    seed("cache_entry", "whole", b"\0module")
    seed("cache_entry", "altered", bytes([1, 3, 0, 4]) + b"module")
    seed("cache_entry", "cut", bytes([1, 255, 255, 1]) + b"module")
    seed("cache_entry", "longer", bytes([1, 255, 255, 0]) + b"module")
    seed("cache_entry", "footer", b"HHMODUL1" + bytes(40))


def isolation() -> None:
    """Messages' heads, and behind a zero byte their numbers; and one whole frame."""
    device = {"id": "0", "ordinal": 0, "name": "cpu", "driver": "cpu"}
    norm = {"kind": "rms", "eps": 1e-5, "weight": True, "weight_offset": 0.0, "bias": False}
    layer = {
        "pre_attention": norm, "post_attention": None, "pre_feed_forward": norm, "post_feed_forward": None,
        "attention": {"heads": 1, "kv_heads": 1, "head_dim": 8, "scale": 0.35, "window": None, "softcap": None,
                      "rope": {"dims": 8, "theta": 10000.0, "scaling": None, "layout": "half_split"},
                      "qk_norm": None, "qkv_bias": False, "output_bias": False},
        "feed_forward": {"gated": {"intermediate": 8, "activation": "silu", "bias": False}},
        "residual_scale": 1.0,
    }
    model = {"architecture": "llama", "vocab_size": 4, "hidden_size": 8, "max_context": 16,
             "embedding_scale": 1.0, "layers": [layer], "final_norm": norm,
             "head": {"tied": True, "bias": False, "softcap": None, "scale": 1.0}}
    memory = {"weights": 0, "kv_per_token": 64, "kv_full": 1024, "workspace": 0, "scores_full": 0}
    plan = {"device": device, "precision": "f32", "kv_dtype": "f32", "context": 16, "max_sequences": 1,
            "prefill_chunk": 8, "threads": None, "weights": [], "memory": memory, "choices": []}
    shapes = {"embedding": [4, 8], "final_norm": [8]}
    weights = [(name, shapes[name]) for name in shapes]
    weights += [({"layer": [0, name]}, [8]) for name in ["pre_attention_norm", "pre_feed_forward_norm"]]
    weights += [({"layer": [0, name]}, [8, 8]) for name in ["query", "key", "value", "output", "gate", "up", "down"]]
    at = 0
    placed = []
    for name, shape in weights:
        length = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        part = {"dtype": "f32", "shape": shape, "file": 0, "offset": at, "length": length}
        placed.append({"id": name, "form": {"dense": "f32"}, "parts": [part]})
        at += length
    greedy = {"sample": "greedy", "logits": "last", "top_logprobs": 1}
    requests = {
        "open": {"open": {"plan": plan, "model": model, "weights": placed}},
        "prefill": {"prefill": [1, greedy]},
        "decode": {"decode": [[[0, 1], [2, 3]], greedy]},
        "truncate": {"truncate": [0, 3]},
        "capabilities": {"capabilities": "0"},
        "cache": {"cache": "clear"},
    }
    for name, request in requests.items():
        seed("isolation", name, {"number": 1, "request": request})
    replies = {
        "hello": {"hello": {"protocol": 1, "version": "0.1.0"}},
        "channel": {"channel": {"id": 1}},
        "cancel": {"cancel": {"channel": 1, "call": 1}},
        "identity": {"done": {"name": "reference-cpu", "version": "0.1.0", "components": [["iree", "3.13.0"]]}},
        "devices": {"done": [device]},
        "progress": {"event": {"progress": {"stage": "load_weights", "done": 1, "total": 2}}},
        "failed": {"failed": {"code": "invalid_input", "message": "x", "context": [], "hint": "y",
                              "retryable": False}},
    }
    for name, reply in replies.items():
        seed("isolation", name, reply)
    numbers = struct.pack("<ffIf", 1.5, -0.5, 3, -0.25)
    compact = lambda value: json.dumps(value, separators=(",", ":")).encode()  # noqa: E731
    steps = compact({"done": [{"token": 3, "logits": 2, "top_logprobs": 1}]})
    seed("isolation", "steps", steps + b"\0" + numbers)
    taps = compact({"done": [{"site": {"layer": 0, "point": "gate"}, "shape": [2, 2]}]})
    seed("isolation", "taps", taps + b"\0" + numbers)
    seed("isolation", "frame", b"HHIP" + struct.pack("<IQ", len(steps), len(numbers)) + steps + numbers)


def chat_templates() -> None:
    messages = json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": None,
                           "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]}])
    for path in sorted((FIXTURES / "chat").glob("*.jinja")):
        seed("chat_template", path.stem, path.read_bytes() + b"\0" + messages.encode())
    for name, source in {
        "loop": "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
        "macro": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "double": "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "include": "{% include '/etc/passwd' %}",
        "python": "{{ ''.__class__.__mro__ }}{{ messages|map(attribute='role')|join(', ')|upper }}",
        "slices": "{{ messages[::-1] }}{{ 'abc'[1:-1:2] * 3 }}{{ '%s %d'|format('a', 1) }}",
    }.items():
        seed("chat_template", name, source)


def main() -> None:
    shutil.rmtree(SEEDS, ignore_errors=True)
    checkpoint_headers()
    checkpoint_indexes()
    configs()
    quantizations()
    ggufs()
    manifests()
    tokenizers()
    tokenizer_configs()
    cache_entries()
    isolation()
    chat_templates()


if __name__ == "__main__":
    main()
