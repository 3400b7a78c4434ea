"""Runs halfhitch and its peers alternately on the same weights, and writes what came out.

    peers.py smollm2|1b --program HALFHITCH --files FOLDER --model CHECKPOINT [--out FOLDER]

Each round runs every engine once for every number of threads, each in a new process; a round starts one
engine later than the last one. Ratios are taken within a round; medians over rounds come last. Before
any of it, every engine has to generate what the oracle generates, as far as its precision allows.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import tables
from engines import HERE, Broken, Halfhitch, Script, Workload, llama

# An engine whose tokens agree less than this with the oracle's, on the average of all prompts up to the
# first fork, computes something else: by chance it would be nothing. Eight-bit activations fork early, at
# close choices; weights that were rounded once more do so sooner still.
AGREEMENT = {"same": 0.4, "requantised": 0.15}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=["smollm2", "1b"])
    parser.add_argument("--program", type=Path, required=True, help="halfhitch, optimised")
    parser.add_argument("--backend", default="xla-iree:local-task")
    parser.add_argument("--files", type=Path, required=True, help="folder of the GGUF files")
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--mlx", type=Path, help="a Python that has mlx_lm")
    parser.add_argument("--candle", type=Path, help="the program of bench/candle")
    parser.add_argument("--left-out", action="append", default=[], help="NAME=REASON, for the table")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", type=int)
    parser.add_argument("--decode", type=int)
    parser.add_argument("--only", help="engines whose names hold one of these texts, by commas")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bench")
    parser.add_argument("--name", help="of the files written [the set's]")
    parser.add_argument("--busy", action="store_true", help="measure on a busy machine all the same")
    return parser.parse_args()


def engines(args):
    ours = dict(program=args.program.resolve(), backend=args.backend)

    def own(precision, quant):
        label = f"{precision} {'4-bit' if quant == 'packed' else 'dense'}"
        return Halfhitch("halfhitch", label, args.model, precision=precision, quant=quant, **ours)

    files = args.files
    if args.set == "1b":
        return [
            own("f32", "packed"),
            llama("Q4_1", files / "q4_1.gguf"),
            own("bf16", "packed"),
            llama("Q4_0", files / "q4_0.gguf"),
        ]
    all_engines = [
        own("f32", "packed"),
        llama("Q4_1", files / "q4_1.gguf"),
        own("f16", "dequant"),
        llama("f16", files / "f16.gguf"),
        own("bf16", "packed"),
        llama("Q4_0", files / "q4_0.gguf", numbers="requantised"),
        own("f32", "dequant"),
        llama("f32", files / "f32.gguf"),
    ]
    if args.candle:
        for form, numbers in (("q4_1", "same"), ("q4_0", "requantised")):
            command = [args.candle.resolve()]
            model = files / f"{form}.gguf"
            more = dict(numbers=numbers, command=command, rounds=2)
            all_engines.append(Script("candle", form.upper(), model, **more))
    if args.mlx:
        command = [args.mlx, HERE / "run_mlx.py"]
        # A tenth of the others' speed: less of it, once in two rounds, is enough to say so.
        all_engines.append(
            Script(
                "MLX",
                "4-bit, f32",
                args.model,
                takes_threads=False,
                workload=Workload(prefill=32, decode=16, warmup=0),
                rounds=2,
                command=command,
                options=["--dtype", "float32"],
            )
        )
    return all_engines


def oracle(args):
    """Prompts, and what follows them: by transformers, or for random weights by halfhitch in f32."""
    if args.set == "smollm2":
        path = HERE.parent / "tests" / "fixtures" / "oracle" / "smollm2-135m-float32.json"
        cases = json.loads(path.read_text())["cases"]
        return [c["prompt_ids"] for c in cases], [c["generated_ids"][:8] for c in cases]
    prompts = [[(7919 * i + 104729 * j) % 128256 for j in range(12)] for i in range(1, 9)]
    wanted = engines(args)[0].generate(prompts, 2)
    if len({token for tokens in wanted for token in tokens}) < len(prompts):
        raise SystemExit(f"error: an oracle that says the same to everything proves nothing: {wanted}")
    return prompts, wanted


def agreement(tokens, wanted):
    shares = []
    for got, want in zip(tokens, wanted, strict=True):
        same = next((i for i, pair in enumerate(zip(got, want)) if pair[0] != pair[1]), len(want))
        shares.append(same / len(want))
    return statistics.mean(shares)


def check(all_engines, args):
    """Leaves out what cannot run, and stops at what runs and computes something else."""
    prompts, wanted = oracle(args)
    sound, left_out = [], {}
    for engine in all_engines:
        say(f"checking {engine.name}")
        try:
            share = agreement(engine.generate(prompts, len(wanted[0])), wanted)
        except Broken as error:
            left_out[engine.name] = str(error)
            say(f"  left out: {error}")
            continue
        say(f"  {100 * share:.0f} % of the oracle's tokens before a fork")
        if share < AGREEMENT[engine.numbers]:
            raise SystemExit(f"error: {engine.name} computes something else: {share:.2f}")
        engine.agreement = share
        sound.append(engine)
    return sound, left_out


def say(text):
    print(text, file=sys.stderr, flush=True)


def run_rounds(all_engines, args, workload):
    threads = [int(n) for n in args.threads.split(",")]
    for round_number in range(args.rounds):
        begin = time.monotonic()
        for count in threads:
            for step in range(len(all_engines)):
                engine = all_engines[(round_number + step) % len(all_engines)]
                if engine.rounds is not None and round_number >= engine.rounds:
                    continue
                if not engine.takes_threads and count != threads[0]:
                    continue
                key = count if engine.takes_threads else None
                sample = engine.measure(count, engine.workload or workload)
                engine.samples.setdefault(key, []).append((round_number, sample))
        say(f"round {round_number + 1} of {args.rounds}: {time.monotonic() - begin:.0f} s")


def busy_share(seconds=2.0):
    """How much of the processors' time is used, by whomever; none where the system does not tell."""

    def times():
        words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        user, nice, system, idle, wait, irq, softirq, steal = map(int, words)
        return user + nice + system + irq + softirq + steal, idle + wait

    try:
        used, idle = times()
        time.sleep(seconds)
        used, idle = (after - before for after, before in zip(times(), (used, idle)))
        return used / max(1, used + idle)
    except (OSError, ValueError):
        return None


def wait_for_quiet(args):
    """Engines whose threads spin for one another fall to a hundredth of their speed where something else
    runs, others to a half: what a busy machine measures is the scheduler."""
    for _ in range(60):
        busy = busy_share()
        if busy is None or busy < 0.05 or args.busy:
            return busy
        say(f"{100 * busy:.0f} % of the processors are busy; waiting")
        time.sleep(3)
    raise SystemExit("error: the machine does not get quiet; --busy measures all the same")


def machine():
    flags = set()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                flags = set(line.split())
                break
    except OSError:
        pass
    known = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"]
    return {
        "cores": os.cpu_count(),
        "extensions": [f for f in known if f in flags],
    }


def llama_features():
    """What llama.cpp was built for. One that was not built for this processor is no peer."""
    import llama_cpp

    info = llama_cpp.llama_print_system_info().decode()
    found = [part.split("=")[0].split(":")[-1].strip() for part in info.split("|") if "= 1" in part]
    for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX512")):
        if flag in machine()["extensions"] and name not in found:
            raise SystemExit(f"error: llama.cpp was built without {name}: remove .cache/peers/llama")
    return " ".join(found)


def versions(args):
    def git(*words):
        done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True)
        return done.stdout.strip() or None

    found = {
        "date": time.strftime("%Y-%m-%d"),
        "halfhitch": git("describe", "--always", "--dirty"),
        "llama-cpp-python": f"{metadata.version('llama-cpp-python')} ({llama_features()})",
    }
    if args.mlx:
        script = "from importlib.metadata import version as v; print(v('mlx'), v('mlx-lm'))"
        done = subprocess.run([args.mlx, "-c", script], capture_output=True, text=True)
        found["mlx, mlx-lm"] = done.stdout.strip()
    if args.candle:
        done = subprocess.run([args.candle, "--version"], capture_output=True, text=True)
        found["candle"] = done.stdout.strip()
    return found


def main():
    args = arguments()
    default = Workload(512, 128) if args.set == "smollm2" else Workload(128, 32)
    workload = Workload(args.prefill or default.prefill, args.decode or default.decode)
    chosen = engines(args)
    if args.only:
        words = args.only.split(",")
        chosen = [e for e in chosen if any(word in e.name for word in words)]
    before = machine() | {"busy_before": wait_for_quiet(args)}
    begin = time.monotonic()
    sound, left_out = check(chosen, args)
    left_out |= dict(text.split("=", 1) for text in args.left_out)
    run_rounds(sound, args, workload)
    say(f"{time.monotonic() - begin:.0f} s in all")
    report = tables.collect(args.set, sound, left_out, workload, args, before, versions(args))
    name = args.name or ("peers" if args.set == "smollm2" else "peers-1b")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / f"{name}.md").write_text(tables.markdown(report, f"{name}.svg"))
    (args.out / f"{name}.svg").write_text(tables.chart(report))
    print(tables.markdown(report, f"{name}.svg"))


if __name__ == "__main__":
    main()
