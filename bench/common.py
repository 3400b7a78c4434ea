"""What the measuring programs of the peers share: their command line, their clock, their answer.

A program is given a model, a number of threads and lengths, and prints one JSON object:

    load_s                 opening the model
    first_token_s          the first prompt after that, of 32 tokens, to its first token
    prefill_tokens_per_s   a prompt of --prefill tokens from an empty cache
    decode_tokens_per_s    --decode tokens after a prompt of 32
    peak_rss_bytes         the most memory the process had resident

which is what `halfhitch bench` measures, in the same order, with as much warming up. With --check it
reads {"prompts": [[ids]], "count": N} from standard input instead, and prints {"tokens": [[ids]]}: what
it generates greedily after each prompt.
"""

import argparse
import json
import random
import sys
import time

PROMPT = 32


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--dtype", default="")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def peak_rss_bytes():
    # Not getrusage: what that says begins with the parent's memory.
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def measure(args, open_engine):
    """open_engine() gives an object with `vocabulary`, `prefill(ids)` from an empty cache and
    `step(id)`, both of which return the likeliest next token, as a number that is there."""
    start = time.perf_counter()
    engine = open_engine()
    load_s = time.perf_counter() - start
    if args.check:
        request = json.load(sys.stdin)
        answers = [generate(engine, ids, request["count"]) for ids in request["prompts"]]
        print(json.dumps({"tokens": answers}))
        return
    draw = random.Random(0x5EED)

    def prompt(count):
        ids = [draw.randrange(engine.vocabulary) for _ in range(count)]
        start = time.perf_counter()
        token = engine.prefill(ids)
        return time.perf_counter() - start, token

    def decode(count):
        _, token = prompt(PROMPT)
        start = time.perf_counter()
        for _ in range(count):
            token = engine.step(token)
        return time.perf_counter() - start

    first_token_s, _ = prompt(PROMPT)
    for _ in range(args.warmup):
        prompt(args.prefill)
        decode(args.decode)
    prefill_s, _ = prompt(args.prefill)
    decode_s = decode(args.decode)
    print(
        json.dumps(
            {
                "load_s": load_s,
                "first_token_s": first_token_s,
                "prefill_tokens_per_s": args.prefill / prefill_s,
                "decode_tokens_per_s": args.decode / decode_s,
                "peak_rss_bytes": peak_rss_bytes(),
            }
        )
    )


def generate(engine, ids, count):
    tokens = [engine.prefill(ids)]
    while len(tokens) < count:
        tokens.append(engine.step(tokens[-1]))
    return tokens
