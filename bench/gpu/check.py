#!/usr/bin/env python3
"""Checks halfhitch on a bare machine, from a bundle that `make gpu-bundle` made.

    python3 check.py [--work FOLDER] [--out FILE] [--minutes 8] [--short]

No compiler and no network is used. In turn: the bundle is whole; the plugin loads and has a device; the
real model's tokens are those of transformers, in f32, in f16 and from packed weights; the accuracy gate
passes; decoding and prompts are timed, on the real model and on one of 1.2 billion random weights. What
does not fit the time, or wants a format that the device does not offer, is left out. The result is one JSON object; the exit code is 1 where anything
failed.

A rate's share of the bandwidth is bytes of weights a second over what the device's memory could move: on
CUDA twice its memory clock times its bus width, as its driver tells them; else what `halfhitch bench`
measured of the host's.
"""

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Every configuration: name, options, model. Packed weights keep their own bits.
DENSE = [(p, ["--precision", p, "--quant", "dequant"]) for p in ("f32", "f16", "bf16")]
PACKED = ["--precision", "f32", "--quant", "packed"]
# Where the oracle's two likeliest tokens are nearer than this, a narrower type may take the other.
NEAR = {"f32": 0.0, "f16": 0.1, "bf16": 0.5}


class Check:
    def __init__(self, args, told):
        self.args, self.told = args, told
        self.work = args.work
        self.ends = time.monotonic() + 60 * args.minutes
        self.program = HERE / "bin" / "halfhitch"
        # Nothing but the system's own programs, and no compiler by name.
        self.env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.work),
            "HALFHITCH_CACHE_DIR": str(self.work / "cache"),
            "HALFHITCH_LOG": "warn",
        }
        for name in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HALFHITCH_THREADS"):
            if name in os.environ:
                self.env[name] = os.environ[name]
        self.backend = args.backend or told["backend"]
        self.report = {"backend": self.backend, "checks": [], "speed": []}

    def left(self):
        return self.ends - time.monotonic()

    def run(self, *options, limit=240):
        """A command's JSON, or a dictionary with `error`."""
        limit = min(limit, self.left())
        if limit < 5:
            return {"error": "skipped: no time is left"}
        try:
            done = subprocess.run(
                [str(self.program), *map(str, options), "--json", "--quiet"],
                env=self.env,
                cwd=self.work,
                timeout=limit,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"stopped after {limit:.0f} s"}
        try:
            out = json.loads(done.stdout)
        except ValueError:
            return {"error": (done.stderr or done.stdout or f"exit code {done.returncode}").strip()[-400:]}
        if isinstance(out, dict) and isinstance(out.get("error"), dict):
            failed = out["error"]
            return {"error": f"{failed.get('message')} ({failed.get('hint')})"}
        return out

    def note(self, name, passed, **facts):
        """`passed` is None for what was left out."""
        verdict = {True: "pass", False: "FAIL", None: "left out"}[passed]
        said = ", ".join(f"{k} {v}" for k, v in facts.items())
        print(f"{verdict:<9} {name}" + (f": {said}" if said else ""), flush=True)
        self.report["checks"].append({"check": name, "passed": passed, **facts})
        return passed

    # What is there.

    def whole(self):
        wrong = [
            name
            for name, wanted in self.told["files"].items()
            if not (HERE / name).is_file()
            or hashlib.sha256((HERE / name).read_bytes()).hexdigest() != wanted
        ]
        return self.note("the bundle is whole", not wrong, files=len(self.told["files"]), wrong=wrong)

    def set_up(self):
        os.umask(0o077)
        shutil.copytree(HERE / "cache", self.work / "cache")
        self.python("join", self.work / "smollm2", HERE / "smollm2-135m")
        self.python("widen", self.work / "smollm2-8bit", self.work / "smollm2")

    def python(self, *arguments):
        subprocess.run([sys.executable, str(HERE / "models.py"), *map(str, arguments)], check=True)

    def device(self):
        listed = self.run("backends")
        rows = [r for r in listed.get("backends", []) if self.backend.startswith(r["name"])]
        row = rows[0] if rows else {"state": "missing", "reason": listed.get("error")}
        devices = row.get("devices") or []
        ready = self.note(
            "the plugin loads and has a device",
            row["state"] == "ready" and bool(devices),
            state=row["state"],
            reason=row.get("reason"),
        )
        self.report["devices"] = devices
        if not ready:
            return False
        own = devices[0].get("codegen_target") or ""
        self.report["codegen_target"] = own
        named = fitting(own, self.told["targets"])
        if named:
            self.env["HALFHITCH_IREE_TARGET"] = named
            self.report["code_for"] = named
            print(f"          code for {named}, which {own} runs", flush=True)
        return True

    # What is right.

    def tokens(self):
        oracle = json.loads((HERE / "oracle.json").read_text())
        cases = oracle["cases"][: 1 if self.args.short else 4]
        most = 8 if self.args.short else 48
        runs = [(f"{p}, dequantised", o, p, "smollm2") for p, o in DENSE[:2]]
        runs.append(("packed, 4 bits", PACKED, "f32", "smollm2"))
        runs.append(("packed, 8 bits", PACKED, "f32", "smollm2-8bit"))
        for name, options, precision, model in runs:
            same, error = [], None
            for case in cases:
                ids = ",".join(map(str, case["prompt_ids"]))
                got = self.run(
                    "generate", "-m", self.work / model, "-b", self.backend, *options,
                    "--prompt-tokens", ids, "--max-tokens", most, "--temperature", "0",
                )
                if "error" in got:
                    error = got["error"]
                    break
                same.append(agreement(got["tokens"], case, most, NEAR[precision]))
            good = error is None and all(s["right"] for s in same)
            facts = {"error": error} if error else {"equal": [s["equal"] for s in same]}
            self.note(f"tokens of transformers, {name}", skipped(error, good), **facts)

    def gate(self):
        prompts = self.work / "prompts.txt"
        prompts.write_text(
            "=== prose\nThe sea was calm that morning, and nobody in the village thought of storms.\n"
            + ("" if self.args.short else "=== numbers\nIn 1969 there were 3 of them; by 2004, 4,812 in 61 countries.\n")
        )
        runs = [("f32, packed", PACKED)]
        runs += [] if self.args.short else [(f"{p}, dequantised", o) for p, o in DENSE[1:2]]
        for name, options in runs:
            got = self.run(
                "verify", "-m", self.work / "smollm2", "-b", self.backend, *options,
                "--prompts", prompts, "--decode-steps", 4,
            )
            error = got.get("error")
            facts = {"error": error} if error else {"kl_mean": got.get("overall", {}).get("kl_mean")}
            self.note(f"the accuracy gate, {name}", skipped(error, got.get("verdict") == "pass"), **facts)

    # How fast.

    def speed(self):
        memory = cuda_bandwidth() if "cuda" in self.backend else None
        self.report["memory_bytes_per_s"] = memory
        real = [(f"smollm2 {p}", o, "smollm2") for p, o in DENSE]
        real += [("smollm2 packed 4", PACKED, "smollm2"), ("smollm2 packed 8", PACKED, "smollm2-8bit")]
        if self.args.short:
            real = real[3:4]
        for name, options, model in real:
            self.bench(name, options, model, memory)
        if not self.told["large"] or self.args.short:
            self.note("speed, 1.2 B random weights", None, reason="not asked for")
            return
        for bits in (4, 8):
            self.python("random", self.work / f"1b-{bits}bit", "--bits", bits)
        self.bench("1.2 B packed 4", PACKED, "1b-4bit", memory)
        self.bench("1.2 B packed 8", PACKED, "1b-8bit", memory)
        for precision, options in reversed(DENSE):
            self.bench(f"1.2 B {precision}", options, "1b-4bit", memory)

    def bench(self, name, options, model, memory):
        few = ["--prefill", "32", "--decode", "8", "--repeats", "1", "--warmup", "0"]
        full = ["--prefill", "128,512", "--decode", "64", "--repeats", "2"]
        got = self.run(
            "bench", "-m", self.work / model, "-b", self.backend, *options,
            "--context", "1024", *(few if self.args.short else full),
        )
        error = got.get("error")
        measured = got.get("configurations") or []
        if error is None and not measured:
            error = json.dumps(got.get("impossible") or got)[:300]
        if error:
            self.note(f"speed, {name}", skipped(error, False), error=error)
            return
        of = measured[0]
        decode = of["decode_tokens_per_s"]["median"]
        if memory:
            share, by = decode * of["step_bytes"] / memory, "the device's memory"
        else:
            share, by = of["bandwidth_share"]["median"], "the host's memory"
        row = {
            "what": name,
            "decode_tokens_per_s": round(decode, 2),
            "prefill_tokens_per_s": {p["tokens"]: round(p["tokens_per_s"]["median"], 1) for p in of["prefill"]},
            "step_bytes": of["step_bytes"],
            "bandwidth_share": round(share, 4),
            "share_of": by,
            "load_s": round(of["load_s"]["median"], 2),
        }
        # Code that was compiled here would mean that a compiler was found.
        self.report["speed"].append(row)
        prefill = ", ".join(f"{n}: {rate}" for n, rate in row["prefill_tokens_per_s"].items())
        self.note(
            f"speed, {name}", True, decode=f"{decode:.1f} tok/s", share=f"{100 * share:.1f} %", prefill=f"{prefill} tok/s"
        )


def skipped(error, passed):
    left_out = error and (error.startswith("skipped") or "does not compute in" in error)
    return None if left_out else passed


def agreement(tokens, case, most, near):
    """How many tokens are equal, and whether the first that is not was as likely."""
    wanted = case["generated_ids"][: min(most, len(tokens))]
    equal = next((i for i, (a, b) in enumerate(zip(tokens, wanted)) if a != b), len(wanted))
    right = equal == len(wanted) and bool(tokens)
    if not right and tokens and near:
        top = case["top5"][equal]
        right = top["logits"][0] - top["logits"][1] < near and tokens[equal] in top["ids"][:2]
    return {"equal": f"{equal} of {len(wanted)}", "right": right}


def fitting(own, targets):
    """The newest of the bundle's targets that a CUDA device of another runs; nothing where its own is there."""
    if own in targets or not own.startswith("cuda:sm_"):
        return None
    number = int(own.removeprefix("cuda:sm_"))
    older = [t for t in targets if int(t.removeprefix("cuda:sm_")) <= number]
    return max(older, key=lambda t: int(t.removeprefix("cuda:sm_")), default=None)


def cuda_bandwidth():
    """Bytes a second of the first device's memory, by its clock (kHz, attribute 36) and width (bits, 37)."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device, values = ctypes.c_int(), []
        if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
            return None
        for attribute in (36, 37):
            value = ctypes.c_int()
            if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
                return None
            values.append(value.value)
    except (OSError, AttributeError):
        return None
    return 2 * 1000 * values[0] * values[1] / 8 or None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, help="a new folder for models and code [default: a temporary one]")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="where the result goes")
    parser.add_argument("--minutes", type=float, default=7.5, help="time for all of it")
    parser.add_argument("--backend", help="another device of the bundle's driver, such as xla-iree:cuda:1")
    parser.add_argument("--short", action="store_true", help="a little of each, to try the script")
    args = parser.parse_args()
    args.out = args.out.resolve()
    told = json.loads((HERE / "bundle.json").read_text())
    kept = args.work
    args.work = (kept or Path(tempfile.mkdtemp(prefix="gpu-check-"))).resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    check = Check(args, told)
    try:
        if check.whole():
            check.set_up()
            if check.device():
                check.tokens()
                check.gate()
                check.speed()
    finally:
        if kept is None:
            shutil.rmtree(args.work, ignore_errors=True)
    report = check.report
    report["seconds"] = round(time.monotonic() - began, 1)
    report["passed"] = all(c["passed"] is not False for c in report["checks"])
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{'passed' if report['passed'] else 'FAILED'} in {report['seconds']} s: {args.out}")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
