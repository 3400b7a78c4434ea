#!/usr/bin/env python3
"""Runs mixed sessions for a while, with whatever can go wrong, and checks what must hold.

    tests/soak/soak.py --program PATH [--minutes N] [--seed N] [--isolate | --mixed]

Two sessions at a time generate, chat, measure and import on the given backend, while they are interrupted
and killed at random points, their cache is deleted, damaged and overfull, and their disk is full. Checked:

* no wrong token: every answer, or the part of one that was interrupted, is the reference backend's;
* every exit code and message is one that the README names;
* no orphan: no process of a session is left two seconds after its end;
* no partial file: the cache verifies, and an imported folder is whole or absent;
* no leak: a conversation that goes on from start to end takes no more memory at its end.

Prints a line a minute and a summary; exit code 1 where anything did not hold. Needs nothing beside Python 3.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from processes import LIMIT, MARK, communicate, marked, remove, resident

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "gguf" / "llama-q4_1.gguf"
PROMPTS = ["Hello", "1 2 3 4", "The capital of France is", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "x"]
TOKENS = 24
# Looks, 50 ms apart, until a session's processes must be gone.
LOOKS = 40
# What a conversation may grow by once it is warm, in KiB: allocators keep a little of everything.
GROWTH = 8 << 10


class Soak:
    """What all sessions share."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.work = Path(tempfile.mkdtemp(prefix="halfhitch-soak-"))
        self.model = self.work / "model"
        self.cache = self.work / "cache"
        self.cache.mkdir(mode=0o700)
        self.failures = []
        self.counts = collections.Counter()
        self.lock = threading.Lock()
        self.expected = {}
        self.replies = []
        self.tmpfs = None
        self.stopped = threading.Event()

    # --- running the program -------------------------------------------------------------------

    def environment(self, cache, session):
        env = {k: v for k, v in os.environ.items() if not k.startswith("HALFHITCH_")}
        return env | {"HALFHITCH_CACHE_DIR": str(cache), "HALFHITCH_THREADS": "1", MARK: session}

    def start(self, args, cache=None, file_limit=None, **pipes):
        """A session: a process, and the mark that it and all that it starts carry."""
        session = f"{os.getpid()}-{random.getrandbits(64):x}"

        def limit():
            if file_limit is not None:
                # A write beyond it is an error, as on a full disk, and not the signal.
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

        process = subprocess.Popen(
            [self.arguments.program, *args],
            env=self.environment(cache or self.cache, session),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            restore_signals=False,
            preexec_fn=limit,
            **pipes,
        )
        return process, session

    def finish(self, what, process, session, disturb=None, text=None):
        """Waits for a session's end, with something done to it meanwhile; its exit code and output."""
        timer = None
        if disturb:
            after, action = disturb
            timer = threading.Timer(after, lambda: process.poll() is None and action(process))
            timer.start()
        try:
            out, err = communicate(process, text)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(what, f"hung for {LIMIT} s", out, err)
        finally:
            if timer:
                timer.cancel()
        self.check_no_orphans(what, session)
        self.count(what)
        return process.returncode, out, err

    def check_no_orphans(self, what, session):
        for _ in range(LOOKS):
            if not (left := marked(session)):
                return
            time.sleep(0.05)
        self.fail(what, f"left processes behind: {left}")
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fail(self, what, why, out="", err=""):
        with self.lock:
            self.failures.append(f"{what}: {why}")
        print(f"FAILED {what}: {why}\n{out[-1500:]}{err[-1500:]}", flush=True)

    # --- what must hold of an answer -------------------------------------------------------------

    def generate_args(self, prompt, backend=None):
        args = ["generate", "--json", *self.on(backend), "--raw", "-n", str(TOKENS), "--ignore-eos"]
        return [*args, "-p", prompt]

    def chat_args(self, backend=None):
        return ["chat", *self.on(backend), "-n", "8", "--ignore-eos"]

    def on(self, backend=None):
        """The model, and the backend that is tested or another."""
        args = ["-q", "-m", str(self.model), "-b", backend or self.arguments.backend]
        isolate = self.arguments.isolate or (self.arguments.mixed and random.random() < 0.5)
        return args if backend or not isolate else [*args, "--isolate"]

    def check_answer(self, what, prompt, result, may_end=(), may_fail=()):
        """Exit code 0 with all tokens, or one of `may_end` with a prefix of them, or of `may_fail` with an
        error on one line."""
        code, out, err = result
        answer = None
        try:
            answer = json.loads(out) if out.strip() else None
        except ValueError:
            self.fail(what, f"exit code {code}, and stdout is no JSON", out, err)
            return
        if code in may_fail:
            if not (answer or {}).get("error", {}).get("message") or len(err.strip().splitlines()) > 1:
                self.fail(what, f"exit code {code} without one line that says why", out, err)
            return
        if code not in (0, *may_end):
            self.fail(what, f"exit code {code}", out, err)
            return
        if answer is None:
            if code == 0:
                self.fail(what, "no answer", out, err)
            return
        tokens, want = answer.get("tokens"), self.expected[prompt]
        if code == 0 and tokens != want:
            self.fail(what, f"wrong tokens {tokens}, not {want}", out, err)
        elif tokens is not None and tokens != want[: len(tokens)]:
            self.fail(what, f"wrong tokens {tokens} before its end, not a start of {want}", out, err)

    # --- sessions --------------------------------------------------------------------------------

    def session_generate(self, rng):
        prompt = rng.choice(PROMPTS)
        self.check_answer("generate", prompt, self.finish("generate", *self.start(self.generate_args(prompt))))

    def session_interrupted(self, rng):
        prompt, after = rng.choice(PROMPTS), rng.uniform(0, 1.5)
        process, mark = self.start(self.generate_args(prompt))
        result = self.finish("interrupt", process, mark, (after, lambda p: p.send_signal(signal.SIGINT)))
        # Before the program listens, the signal itself ends it.
        self.check_answer("interrupt", prompt, result, may_end=(130, -signal.SIGINT))

    def session_killed(self, rng):
        prompt, after = rng.choice(PROMPTS), rng.uniform(0, 1.5)
        process, mark = self.start(self.generate_args(prompt))
        result = self.finish("kill", process, mark, (after, lambda p: p.kill()))
        self.check_answer("kill", prompt, result, may_end=(-signal.SIGKILL,))

    def session_cache_deleted(self, rng):
        """Files and folders of the cache go, at any moment."""
        prompt = rng.choice(PROMPTS)
        process, mark = self.start(self.generate_args(prompt))

        def delete(_):
            places = [p for p in self.cache.rglob("*")]
            if places and rng.random() < 0.7:
                remove(rng.choice(places))
            else:
                for place in self.cache.iterdir():
                    remove(place)

        self.check_answer("cache deleted", prompt, self.finish("cache deleted", process, mark, (rng.uniform(0, 1), delete)))

    def session_cache_damaged(self, rng):
        """An entry is cut or altered; it must be made again, and nothing of it used."""
        cache = self.copy_of_cache()
        entries = sorted(cache.rglob("modules/*.vmfb"))
        if entries:
            entry = rng.choice(entries)
            content = bytearray(entry.read_bytes())
            if rng.random() < 0.5:
                del content[rng.randrange(len(content)) :]
            else:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            entry.write_bytes(content)
        prompt = rng.choice(PROMPTS)
        result = self.finish("cache damaged", *self.start(self.generate_args(prompt), cache=cache))
        self.check_answer("cache damaged", prompt, result)
        self.check_cache("cache damaged", cache)
        shutil.rmtree(cache, ignore_errors=True)

    def session_full_disk(self, rng):
        """No file grows beyond a limit, or the cache's file system is full."""
        prompt = rng.choice(PROMPTS)
        cache = Path(tempfile.mkdtemp(dir=self.tmpfs or self.work, prefix="full-"))
        limit = None if self.tmpfs else rng.choice([0, 1 << 10, 16 << 10])
        process, mark = self.start(self.generate_args(prompt), cache=cache, file_limit=limit)
        result = self.finish("full disk", process, mark)
        self.check_answer("full disk", prompt, result, may_fail=(1,))
        self.check_cache("full disk", cache)
        shutil.rmtree(cache, ignore_errors=True)

    def session_chat(self, rng):
        """A conversation through a pipe, whose answers are those of the reference."""
        lines = "".join(f"{p}\n/reset\n" for p in PROMPTS)
        process, mark = self.start(self.chat_args(), stdin=subprocess.PIPE)
        code, out, err = self.finish("chat", process, mark, text=lines)
        if code != 0 or out != self.conversation:
            self.fail("chat", f"exit code {code}, or another conversation than {self.conversation!r}", out, err)

    def session_bench(self, rng):
        args = ["--repeats", "1", "--warmup", "0", "--prefill", "8", "--decode", "8"]
        process, mark = self.start(["bench", "--json", *self.on(), *args])
        after = rng.uniform(0, 4)
        code, out, err = self.finish("bench", process, mark, (after, lambda p: p.send_signal(signal.SIGINT)))
        if code not in (0, 130, -signal.SIGINT):
            self.fail("bench", f"exit code {code}", out, err)

    def session_import(self, rng):
        """Killed or interrupted at any point: the folder is whole, or not there."""
        out_folder = Path(tempfile.mkdtemp(dir=self.work, prefix="import-")) / "model"
        process, mark = self.start(["import", "-q", str(FIXTURE), str(out_folder)])
        action = rng.choice([signal.SIGINT, signal.SIGKILL])
        code, out, err = self.finish("import", process, mark, (rng.uniform(0, 0.06), lambda p: p.send_signal(action)))
        if code not in (0, 130, -signal.SIGINT, -signal.SIGKILL):
            self.fail("import", f"exit code {code}", out, err)
        if out_folder.exists() or code == 0:
            code, out, err = self.finish("import opens", *self.start(["inspect", "--json", "-m", str(out_folder)]))
            if code != 0:
                self.fail("import", "a folder that is not whole", out, err)
        shutil.rmtree(out_folder.parent, ignore_errors=True)

    def session_child_killed(self, rng):
        """With --isolate: the plugin's process is killed, and the program says so."""
        prompt = rng.choice(PROMPTS)
        process, mark = self.start(self.generate_args(prompt))

        def kill_child(parent):
            for pid, _ in marked(mark):
                if pid != parent.pid:
                    os.kill(pid, signal.SIGKILL)

        result = self.finish("child killed", process, mark, (rng.uniform(0, 1.5), kill_child))
        self.check_answer("child killed", prompt, result, may_fail=(1,))

    # --- the cache -------------------------------------------------------------------------------

    def copy_of_cache(self):
        """Entries as they are now; others may be at work in it."""
        copy = Path(tempfile.mkdtemp(dir=self.work, prefix="cache-"))
        for entry in self.cache.rglob("*.vmfb"):
            to = copy / entry.relative_to(self.cache)
            try:
                to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                shutil.copy2(entry, to)
            except FileNotFoundError:
                pass
        for folder in [p for p in copy.rglob("*") if p.is_dir()]:
            folder.chmod(0o700)
        return copy

    def check_cache(self, what, cache):
        """No entry is damaged, and no temporary file is left in it."""
        process, mark = self.start(["cache", "verify", "--json"], cache=cache)
        code, out, err = self.finish("cache verify", process, mark)
        if code != 0:
            self.fail(what, "a damaged entry is in the cache", out, err)
        left = [p for p in cache.rglob("tmp-*") if what != "kill"]
        if left:
            self.fail(what, f"left in the cache: {left}")

    # --- a conversation that goes on ---------------------------------------------------------------

    def converse(self, deadline):
        """One session from start to end, and what memory its processes take."""
        cache = self.work / "conversation"
        cache.mkdir(mode=0o700)
        process, mark = self.start(self.chat_args(), cache=cache, stdin=subprocess.PIPE)
        errors = []
        threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True).start()
        warm = last = None
        turns = 0
        while self.goes_on(deadline) and process.poll() is None:
            for prompt, reply in zip(PROMPTS, self.replies):
                process.stdin.write(f"{prompt}\n/reset\n")
                process.stdin.flush()
                said = process.stdout.readline()
                if said != reply:
                    self.fail("conversation", f"turn {turns}: {said!r}, not {reply!r}")
                    process.kill()
                    return
                turns += 1
            last = sum(resident(pid) for pid, _ in marked(mark)) or last
            if turns >= 40 and warm is None:
                warm = last
            time.sleep(0.2)
        process.stdin.close()
        code = process.wait(LIMIT)
        self.check_no_orphans("conversation", mark)
        if code != 0:
            self.fail("conversation", f"exit code {code}", "", "".join(errors))
        grown = (last or 0) - (warm or last or 0)
        self.summary = f"conversation: {turns} turns, {last} KiB resident, {grown:+} KiB since turn 40"
        if grown > GROWTH:
            self.fail("conversation", f"grew by {grown} KiB over {turns} turns")

    def goes_on(self, deadline):
        return time.monotonic() < deadline and not self.stopped.is_set()

    # --- all of it ---------------------------------------------------------------------------------

    def prepare(self):
        run = lambda args: self.finish("prepare", *self.start(args))  # noqa: E731
        code, out, err = run(["import", "-q", str(FIXTURE), str(self.model)])
        if code != 0:
            raise SystemExit(f"cannot import the model:\n{err}")
        for prompt in PROMPTS:
            code, out, err = run(self.generate_args(prompt, "reference-cpu"))
            if code != 0:
                raise SystemExit(f"the reference fails:\n{err}")
            self.expected[prompt] = json.loads(out)["tokens"]
            if len(self.expected[prompt]) != TOKENS:
                raise SystemExit(f"the reference gives {len(self.expected[prompt])} tokens, not {TOKENS}")
        process, mark = self.start(self.chat_args("reference-cpu"), stdin=subprocess.PIPE)
        lines = "".join(f"{p}\n/reset\n" for p in PROMPTS)
        code, self.conversation, err = self.finish("prepare", process, mark, text=lines)
        self.replies = self.conversation.splitlines(keepends=True)
        if code != 0 or len(self.replies) != len(PROMPTS):
            raise SystemExit(f"the reference's conversation is not a line a turn: {self.conversation!r}\n{err}")
        # Undisturbed, the backend gives what the reference gives: what differs later was disturbed.
        for prompt in PROMPTS:
            self.check_answer("undisturbed", prompt, run(self.generate_args(prompt)))
            if self.failures:
                raise SystemExit("the backend fails undisturbed")
        self.mount()

    def mount(self):
        """A file system of 256 KiB where that is allowed; else sizes of files are limited."""
        place = self.work / "tmpfs"
        place.mkdir(mode=0o700)
        mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(place)]
        if subprocess.run(mount, capture_output=True).returncode == 0:
            self.tmpfs = place

    def run(self):
        start = time.monotonic()
        deadline = start + self.arguments.minutes * 60
        sessions = [
            (6, self.session_generate), (4, self.session_interrupted), (3, self.session_killed),
            (3, self.session_cache_deleted), (2, self.session_cache_damaged), (2, self.session_full_disk),
            (2, self.session_chat), (1, self.session_bench), (3, self.session_import),
        ]  # fmt: skip
        if self.arguments.isolate or self.arguments.mixed:
            sessions.append((4, self.session_child_killed))
        weights = [w for w, _ in sessions]

        def worker(number):
            rng = random.Random(self.arguments.seed * 1000 + number)
            while self.goes_on(deadline):
                session = rng.choices(sessions, weights)[0][1]
                try:
                    session(rng)
                except Exception as error:  # a mistake of the soak's own must not pass for success
                    self.fail(session.__name__, repr(error))

        self.summary = ""
        threads = [threading.Thread(target=worker, args=(n,)) for n in range(2)]
        threads.append(threading.Thread(target=self.converse, args=(deadline,)))
        for thread in threads:
            thread.start()
        told = 0
        try:
            while any(t.is_alive() for t in threads):
                time.sleep(0.5)
                minutes = int((time.monotonic() - start) / 60)
                if minutes > told:
                    told = minutes
                    print(f"{minutes} min: {sum(self.counts.values())} runs, {len(self.failures)} failures", flush=True)
        finally:
            # Interrupted, what runs comes to its end, and nothing follows.
            self.stopped.set()
            for thread in threads:
                thread.join()
        self.check_cache("end", self.cache)

    def close(self):
        if self.tmpfs:
            subprocess.run(["umount", str(self.tmpfs)], check=False)
        shutil.rmtree(self.work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, type=os.path.abspath)
    parser.add_argument("--backend", default="xla-iree:local-task")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 20))
    parser.add_argument("--isolate", action="store_true", help="run plugins in a process of their own, and kill it")
    parser.add_argument("--mixed", action="store_true", help="run half of them so")
    soak = Soak(parser.parse_args())
    print(f"seed {soak.arguments.seed}", flush=True)
    # Also where it was started in the background, or is ended: there is a file system to unmount.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        soak.prepare()
        print(f"a full disk is {'a small tmpfs' if soak.tmpfs else 'a limit on the size of files'}", flush=True)
        soak.run()
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:
        soak.close()
    for what, count in sorted(soak.counts.items()):
        print(f"  {what:<16} {count}")
    print(f"  {soak.summary}")
    if soak.failures:
        print(f"{len(soak.failures)} failures; the same again with --seed {soak.arguments.seed}")
        sys.exit(1)
    print("nothing failed")


if __name__ == "__main__":
    main()
