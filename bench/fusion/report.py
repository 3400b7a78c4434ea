#!/usr/bin/env python3
"""Compiles packed and dense graphs for every target, counts what comes out, and writes docs/fusion.md.

    report.py [--program target/release/halfhitch] [--out docs]

Two kinds of graphs: one product of a packed 4-bit weight, written in different ways (micro.py), straight
through `iree-compile`; and steps of real models, through `halfhitch graph`. Nothing is run and no device is
used: what is told are kernels, bytes between them, and whether a target's code generator takes the graph.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.sax.saxutils import escape

import micro

ROOT = Path(__file__).resolve().parents[2]
# As halfhitch names targets, and the flags that it gives the compiler for them.
VULKAN = (
    "spirv:v1.3,cap:Shader,ext:SPV_KHR_storage_buffer_storage_class,cap:Float16,cap:StorageBuffer16BitAccess,"
    "cap:StorageUniform16,ext:SPV_KHR_16bit_storage,cap:Int8,cap:StorageBuffer8BitAccess,"
    "cap:UniformAndStorageBuffer8BitAccess,ext:SPV_KHR_8bit_storage,cap:Int16,cap:Int64"
)
TARGETS = {
    "llvm-cpu": ["O3", "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"],
    "cuda:sm_80": ["O3", "--iree-hal-target-backends=cuda", "--iree-cuda-target=sm_80"],
    "cuda:sm_89": ["O3", "--iree-hal-target-backends=cuda", "--iree-cuda-target=sm_89"],
    "metal-spirv": ["O2", "--iree-hal-target-backends=metal-spirv", "--iree-metal-compile-to-metallib=false"],
    "vulkan-spirv": ["O2", "--iree-hal-target-backends=vulkan-spirv", "--iree-hal-memoization=false", f"--iree-vulkan-target-features={VULKAN}"],
    "rocm:gfx942": ["O3", "--iree-hal-target-backends=rocm", "--iree-rocm-target=gfx942"],
}
# A model's forms: name, options.
FORMS = {
    "f32": ["--precision", "f32", "--quant", "dequant"],
    "f16": ["--precision", "f16", "--quant", "dequant"],
    "bf16": ["--precision", "bf16", "--quant", "dequant"],
    "packed 4, f32": ["--precision", "f32", "--quant", "packed"],
    "packed 4, f16": ["--precision", "f16", "--quant", "packed"],
    "packed, expand": ["--precision", "f32", "--quant", "packed", "--representation", "expand"],
}
STEPS = {"decode": "decode", "batch of 8": "batch=8", "prompt of 128": "chunk=128"}
LIMIT = 300


def micro_row(compiler, target, form):
    name, how, text = form
    level, *own = TARGETS[target]
    with tempfile.TemporaryDirectory() as work:
        source, flow, module = (Path(work) / n for n in ("g.mlir", "flow.mlir", "m.vmfb"))
        source.write_text(text)
        flags = [compiler, source, "--iree-input-type=auto", f"--iree-opt-level={level}", *own]
        row = {"target": target, "form": name, "how": how}
        try:
            subprocess.run([*flags, "--compile-to=flow", "-o", flow], check=True, capture_output=True, timeout=LIMIT)
            row |= count(flow.read_text())
            done = subprocess.run([*flags, "-o", module], capture_output=True, text=True, timeout=LIMIT)
            row["compiles"] = None if done.returncode == 0 else first_error(done.stderr)
        except subprocess.TimeoutExpired:
            row["compiles"] = f"stopped after {LIMIT} s"
        except subprocess.CalledProcessError as e:
            row["compiles"] = first_error(e.stderr.decode())
        return row


def first_error(text):
    lines = [line for line in text.splitlines() if "error:" in line]
    return (lines[0].split("error:", 1)[1].strip() if lines else "the compiler crashed")[:160]


def bytes_of(ty):
    *extents, elem = ty.split("x")
    bits = int(re.sub(r"\D", "", elem) or 32)
    for extent in extents:
        bits *= int(extent)
    return bits // 8


def count(text):
    """Kernels of `f`, bytes that they take and give, the largest result that another kernel reads."""
    # The function's own name is in an assertion of the wrapper's as well: take its body alone.
    calls = re.findall(r"(%\S+) = flow\.dispatch @[^(]*\(([^)]*)\) : \(([^)]*)\) -> (.*)", text)
    read = sum(bytes_of(t) for _, _, taken, _ in calls for t in re.findall(r"tensor<([^>]*)>", taken))
    written = sum(bytes_of(t) for *_, given in calls for t in re.findall(r"tensor<([^>]*)>", given))
    between = [bytes_of(t) for *_, given in calls[:-1] for t in re.findall(r"tensor<([^>]*)>", given)]
    return {"kernels": len(calls), "read": read, "written": written, "between": max(between, default=0)}


def model_row(program, model, target, form, step):
    options = [program, "graph", "-m", model, "-b", "xla-iree:local-task", "--json", "--quiet"]
    named = "local" if target == "llvm-cpu" else target
    options += ["--target", named, "--stats", "--shape", STEPS[step], *FORMS[form]]
    row = {"target": target, "form": form, "step": step}
    try:
        done = subprocess.run(options, capture_output=True, text=True, timeout=2 * LIMIT)
        out = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as e:
        return row | {"refused": str(e)[:160]}
    if "error" in out:
        return row | {"refused": out["error"]["message"][:160]}
    stats, total = out["stats"], out["stats"]["counts"]["total"]
    largest = stats["counts"]["largest"] or {"bytes": 0, "shape": ""}
    return row | {
        "a_layer": stats["dispatches_a_layer"],
        "copies": total["copies"],
        "kernels": total["dispatches"],
        "read": total["bytes_read"],
        "written": total["bytes_written"],
        "largest": largest["shape"],
        "largest_bytes": largest["bytes"],
        "rebuilds": stats["rebuilds_a_weight"],
    }


def mib(n):
    return f"{n / 2**20:.1f} MiB" if n >= 2**17 else f"{n / 1024:.1f} KiB"


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def micro_tables(rows):
    heads = ["written as", *TARGETS]
    cells = []
    for name, how, _ in micro.FORMS:
        line = [f"{name}: {how}"]
        for target in TARGETS:
            row = next(r for r in rows if r["form"] == name and r["target"] == target)
            if "kernels" not in row:
                line.append(f"no: {row['compiles']}")
                continue
            said = f"{row['kernels']}"
            if row["between"] >= micro.WEIGHT_BYTES:
                said += f", **{mib(row['between'])} between**"
            if row["compiles"]:
                said += f", no code: {row['compiles']}"
            line.append(said)
        cells.append(line)
    return table(heads, cells)


def model_tables(rows):
    out = []
    for step in STEPS:
        cells = []
        for row in (r for r in rows if r["step"] == step):
            if "refused" in row:
                cells.append([row["target"], row["form"], "", "", "", "", f"no: {row['refused']}"])
                continue
            cells.append(
                [
                    row["target"],
                    row["form"],
                    f"{row['a_layer']:.1f}",
                    row["kernels"],
                    mib(row["read"]),
                    mib(row["written"]),
                    f"{row['largest']} ({mib(row['largest_bytes'])})" + (", **a weight**" if row["rebuilds"] else ""),
                ]
            )
        heads = ["target", "weights", "kernels a layer", "in all", "read", "written", "largest between kernels"]
        out.append(f"### {step[0].upper()}{step[1:]}\n\n{table(heads, cells)}")
    return "\n\n".join(out)


def plot(rows):
    """Bytes between memory and kernels in one decode step, as bars, a group a target."""
    bars = [r for r in rows if r["step"] == "decode" and "refused" not in r]
    most = max(r["read"] + r["written"] for r in bars)
    colours = dict(zip(FORMS, ["#8c9aa8", "#5b7fa6", "#7aa6c2", "#2f7d4f", "#6bb38a", "#c2553f"]))
    height, left, width = 14, 250, 560
    parts, y = [], 40
    for target in TARGETS:
        own = [r for r in bars if r["target"] == target]
        parts.append(f'<text x="8" y="{y + 11}" font-weight="bold">{escape(target)}</text>')
        for r in own:
            moved = r["read"] + r["written"]
            size = max(1, width * moved / most)
            parts.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{escape(r["form"])}</text>')
            parts.append(f'<rect x="{left}" y="{y}" width="{size:.1f}" height="{height - 2}" fill="{colours[r["form"]]}"/>')
            parts.append(f'<text x="{left + size + 5:.1f}" y="{y + 11}">{mib(moved)}, {r["a_layer"]:.0f} kernels a layer</text>')
            y += height
        y += 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="1040" height="{y + 10}" font-family="sans-serif" font-size="11">'
    title = '<text x="8" y="20" font-size="14">Bytes read and written in one decode step of SmolLM2-135M, by the compiled graph</text>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', title, *parts, "</svg>"]) + "\n"


def pinned():
    """The compiler that `make iree-runtime` fetched."""
    found = ROOT.glob(".cache/iree-tools/*/lib/python*/site-packages/iree/compiler/_mlir_libs/iree-compile")
    return max(found, default="iree-compile")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/halfhitch")
    parser.add_argument("--compiler", type=Path, default=pinned(), help="iree-compile [default: the checkout's]")
    parser.add_argument("--model", type=Path, default=ROOT / "models/smollm2-135m")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--steps", default=",".join(STEPS))
    args = parser.parse_args()
    began = time.monotonic()
    asked = [s for s in STEPS if s in args.steps.split(",")]
    with ThreadPoolExecutor(args.jobs) as pool:
        small = [pool.submit(micro_row, args.compiler, t, f) for t in TARGETS for f in micro.FORMS]
        large = [
            pool.submit(model_row, args.program, args.model, t, f, s) for s in asked for t in TARGETS for f in FORMS
        ]
        small = [job.result() for job in small]
        rows = []
        for i, job in enumerate(large):
            rows.append(job.result())
            print(f"{i + 1} of {len(large)}: {rows[-1]}", file=sys.stderr, flush=True)
    for step in [s for s in STEPS if s not in asked]:
        STEPS.pop(step)
    template = (ROOT / "bench/fusion/page.md").read_text()
    page = template.replace("@MICRO@", micro_tables(small)).replace("@MODEL@", model_tables(rows))
    packed = f"N = {micro.N}, K = {micro.K}, groups of {micro.GROUP}: {mib(micro.WEIGHT_BYTES)} packed"
    (args.out / "fusion.md").write_text(page.replace("@SHAPE@", packed))
    (args.out / "fusion.svg").write_text(plot(rows))
    (args.out / "fusion.json").write_text(json.dumps({"micro": small, "model": rows}, indent=1) + "\n")
    print(f"{len(small) + len(rows)} graphs in {time.monotonic() - began:.0f} s: {args.out / 'fusion.md'}")


if __name__ == "__main__":
    main()
