"""Which engines are measured, in which forms of which model, and how each is started."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Broken(Exception):
    """An engine that did not do what it was started for."""


def start(command, stdin=None, threads=None):
    environment = dict(os.environ)
    if threads:
        # candle asks rayon's variable how far to spread a product, whatever pool it runs on.
        environment["RAYON_NUM_THREADS"] = str(threads)
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        input=None if stdin is None else json.dumps(stdin),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Broken(f"exit code {done.returncode}: {lines[-1] if lines else 'without a word'}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise Broken(f"unreadable answer: {error}") from error


@dataclass(frozen=True)
class Workload:
    prefill: int
    decode: int
    warmup: int = 1


@dataclass
class Engine:
    """One engine with one form of the weights."""

    family: str
    weights: str
    model: Path
    # Whether the weights are the "same" numbers as all others', or "requantised" ones.
    numbers: str = "same"
    # An engine that takes no number of threads is measured once a round.
    takes_threads: bool = True
    # Where the engine is too slow for the common one; said in the table.
    workload: Workload | None = None
    rounds: int | None = None
    # By number of threads: (round, figures).
    samples: dict = field(default_factory=dict)
    agreement: float | None = None

    @property
    def name(self):
        return f"{self.family} {self.weights}"

    def measure(self, threads, workload):
        raise NotImplementedError

    def generate(self, prompts, count):
        raise NotImplementedError


@dataclass
class Halfhitch(Engine):
    program: Path = Path()
    backend: str = ""
    precision: str = "f32"
    quant: str = "packed"

    def choice(self):
        return ["--backend", self.backend, "--precision", self.precision, "--quant", self.quant]

    def measure(self, threads, workload):
        report = start(
            [self.program, "--quiet", "bench", "--json", "--repeats", 1]
            + ["--model", self.model, "--threads", threads, *self.choice()]
            + ["--prefill", workload.prefill, "--decode", workload.decode]
            + ["--warmup", workload.warmup]
        )
        one = report["configurations"][0]
        return {
            "load_s": one["load_s"]["median"],
            "first_token_s": one["first_token_s"]["median"],
            "prefill_tokens_per_s": one["prefill"][0]["tokens_per_s"]["median"],
            "decode_tokens_per_s": one["decode_tokens_per_s"]["median"],
            "peak_rss_bytes": one["peak_rss_bytes"]["median"],
            "bandwidth_share": one["bandwidth_share"]["median"],
            "bandwidth_bytes_per_s": report["bandwidth"][0]["bytes_per_s"]["median"],
            "step_bytes": one["step_bytes"],
        }

    def generate(self, prompts, count):
        answers = []
        for ids in prompts:
            answer = start(
                [self.program, "--quiet", "generate", "--json", "--ignore-eos"]
                + ["--model", self.model, *self.choice(), "--max-tokens", count]
                + ["--prompt-tokens", ",".join(map(str, ids))]
            )
            answers.append(answer["tokens"])
        return answers


@dataclass
class Script(Engine):
    """An engine behind a Python program of this folder, or a program that does as they do."""

    command: list = field(default_factory=list)
    options: list = field(default_factory=list)

    def line(self, threads, *more):
        return [*self.command, "--model", self.model, "--threads", threads, *self.options, *more]

    def measure(self, threads, workload):
        more = ["--prefill", workload.prefill, "--decode", workload.decode]
        return start(self.line(threads, *more, "--warmup", workload.warmup), threads=threads)

    def generate(self, prompts, count):
        request = {"prompts": prompts, "count": count}
        return start(self.line(1, "--check"), request, threads=1)["tokens"]


def llama(weights, model, numbers="same"):
    command = [sys.executable, HERE / "run_llama.py"]
    return Script("llama.cpp", weights, model, numbers=numbers, command=command)
