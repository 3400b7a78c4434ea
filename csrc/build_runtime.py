"""Builds the IREE runtime from pinned source, and brings the tools that need pinning.

Called through build-runtime.sh; see its header for the commands. What is taken for granted: a C and
C++ compiler, Python 3.11 or later with venv, and cargo. What is guaranteed:

* Every input is pinned: the source by Cargo.lock's checksum (or IREE_SOURCE_DIR, whose version must
  match and whose content is hashed), the tools by pip hashes.
* An output folder is named by the hash of all that made it, appears whole or not at all (it is
  staged, then renamed), and holds a stamp.json that says what it is.
* Calls may be killed, repeated and made at once: one lock, and ninja resumes an unfinished build.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from iree_corrections import PATCHES

IREE_VERSION = "3.13.0"
SOURCE_CRATE = "eerie-sys"
BASE_DRIVERS = ("local-sync", "local-task")
EXTRA_DRIVERS = ("cuda", "vulkan", "metal")

# The one place for compiler flags. FLAGS go to C and C++ alike; path prefixes are mapped away
# besides, so that the archive is the same wherever it is built.
FLAGS = ("-O3", "-DNDEBUG", "-g0", "-ffunction-sections", "-fdata-sections", "-fvisibility=hidden")
# What code that includes IREE's headers must define, so that it sees them as the archive did.
CONSUMER_DEFINES = ("IREE_ALLOCATOR_SYSTEM_CTL=iree_allocator_libc_ctl", "NDEBUG")
CMAKE_OPTIONS = (
    "CMAKE_BUILD_TYPE=None",
    "CMAKE_POSITION_INDEPENDENT_CODE=ON",
    "IREE_ENABLE_WERROR_FLAG=OFF",
    "IREE_ENABLE_LIBBACKTRACE=OFF",
    "IREE_BUILD_COMPILER=OFF",
    "IREE_BUILD_PYTHON_BINDINGS=OFF",
    "IREE_BUILD_TESTS=OFF",
    "IREE_BUILD_BENCHMARKS=OFF",
    "IREE_BUILD_SAMPLES=OFF",
    "IREE_BUILD_BINDINGS_TFLITE=OFF",
    "IREE_BUILD_BINDINGS_TFLITE_JAVA=OFF",
    "IREE_HAL_DRIVER_DEFAULTS=OFF",
)

# What the runtime's CMake reads of an IREE tree; the rest of a checkout is neither hashed nor copied.
SOURCE_PARTS = (
    "CMakeLists.txt",
    "build_tools",
    "compiler/CMakeLists.txt",
    "compiler/bindings",
    "compiler/version.json",
    "lib",
    "runtime",
    "tests/CMakeLists.txt",
    "third_party/flatcc",
    "third_party/nccl",
    "third_party/vulkan_headers",
    "tools",
)

CSRC = Path(__file__).resolve().parent
ROOT = CSRC.parent
CACHE = ROOT / ".cache"
OUTPUTS = CACHE / "iree-runtime"
TOOLS = CACHE / "iree-tools"

# Exit codes: 2 usage (argparse), and these.
NOT_BUILT, MISSING, MISMATCH, FAILED = 3, 4, 5, 6


class Stop(Exception):
    """A failure with the one line a person reads and the exit code a script reads."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


# The descriptors of the locks that are held. Steps inherit them: when this process is killed, its
# ninja may still be running, and the next call must wait for that, too.
held_locks = []


def say(text):
    print(f"iree-runtime: {text}", file=sys.stderr, flush=True)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def run(command, log, env=None):
    """Runs a step with its output in `log`; a failure shows the end of it."""
    with open(log, "ab") as out:
        out.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        out.flush()
        rc = subprocess.run(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env, pass_fds=held_locks
        ).returncode
    if rc != 0:
        tail = "\n".join(Path(log).read_text(errors="replace").splitlines()[-30:])
        raise Stop(FAILED, f"{Path(command[0]).name} exited with {rc}; the end of {log}:\n{tail}")


@contextlib.contextmanager
def locked(folder):
    """One builder at a time; a second call waits and then finds the first one's work."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another call is at work in {folder}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        held_locks.append(lock.fileno())
        try:
            yield
        finally:
            held_locks.remove(lock.fileno())


# --- what the machine has -------------------------------------------------------------------------


def compiler(variable, default, package):
    """The command and first version line of the C or C++ compiler."""
    command = os.environ.get(variable) or default
    path = shutil.which(command)
    if not path:
        raise Stop(MISSING, f"no compiler '{command}': install {package}, or set {variable}")
    out = subprocess.run([path, "--version"], capture_output=True, text=True)
    if out.returncode != 0:
        raise Stop(MISSING, f"'{path} --version' exited with {out.returncode}")
    return path, (out.stdout.splitlines() or ["unknown"])[0]


def compilers():
    return compiler("CC", "cc", "gcc or clang"), compiler("CXX", "c++", "g++ or clang")


def tools(requirements):
    """A virtual environment with exactly `requirements` in it; made when it is not there."""
    text = (CSRC / requirements).read_bytes()
    tag = f"{sys.version_info.major}{sys.version_info.minor}"
    venv = TOOLS / f"{Path(requirements).stem}-py{tag}-{sha256(text)[:16]}"
    stamp = venv / "stamp"
    if stamp.exists():
        return venv
    with locked(TOOLS):
        if stamp.exists():
            return venv
        shutil.rmtree(venv, ignore_errors=True)
        say(f"installing {requirements}")
        log = TOOLS / f"{venv.name}.log"
        log.unlink(missing_ok=True)
        run([sys.executable, "-m", "venv", venv], log)
        pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install"]
        run(pip + ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", CSRC / requirements], log)
        stamp.write_text("ok\n")
    return venv


def site_packages(venv):
    found = sorted(venv.glob("lib/python3*/site-packages"))
    if not found:
        raise Stop(FAILED, f"{venv} has no site-packages: remove it and call again")
    return found[0]


def iree_compile():
    """The pinned compiler, after a check that it is the version of the runtime."""
    site = site_packages(tools("requirements.txt"))
    binary = site / "iree" / "compiler" / "_mlir_libs" / "iree-compile"
    if not binary.exists():
        raise Stop(FAILED, f"the compiler package has no {binary}")
    found = [p.stem.split("-")[1] for p in site.glob("iree_base_compiler-*.dist-info")]
    if found != [IREE_VERSION]:
        raise Stop(MISMATCH, f"the compiler is {found}, the runtime {IREE_VERSION}: they must be equal")
    return binary


# --- the source -----------------------------------------------------------------------------------


def checkout():
    """IREE_SOURCE_DIR, if it is set."""
    folder = os.environ.get("IREE_SOURCE_DIR")
    return Path(folder).resolve() if folder else None


def check_version(tree):
    path = tree / "runtime" / "version.json"
    try:
        version = json.loads(path.read_text())["package-version"]
    except (OSError, ValueError, KeyError) as error:
        raise Stop(MISMATCH, f"{tree} is not an IREE source folder: {error}") from None
    number = re.match(r"\d+\.\d+\.\d+", version)
    if not number or number.group() != IREE_VERSION:
        raise Stop(MISMATCH, f"{tree} is IREE {version}; {IREE_VERSION} is needed, like the compiler")


def source_files(tree):
    """Every file of SOURCE_PARTS, as sorted relative paths."""
    files = []
    for part in SOURCE_PARTS:
        path = tree / part
        if path.is_file():
            files.append(path)
        elif path.is_dir():
            files.extend(p for p in path.rglob("*") if p.is_file() and ".git" not in p.parts)
    return sorted(p.relative_to(tree).as_posix() for p in files)


def tree_hash(tree):
    total = hashlib.sha256()
    for name in source_files(tree):
        total.update(f"{name}\0{sha256((tree / name).read_bytes())}\n".encode())
    return total.hexdigest()


def source_identity():
    """What stands for the source in the output's hash, without fetching anything."""
    tree = checkout()
    if tree:
        check_version(tree)
        return f"checkout {tree_hash(tree)}"
    lock = (CSRC / "source" / "Cargo.lock").read_text()
    entry = re.search(rf'name = "{SOURCE_CRATE}"\nversion = "([^"]+)"\n.*\nchecksum = "(\w+)"', lock)
    if not entry:
        raise Stop(MISMATCH, f"csrc/source/Cargo.lock does not pin {SOURCE_CRATE}")
    return f"crate {SOURCE_CRATE} {entry.group(1)} sha256 {entry.group(2)}"


def source_tree():
    """The IREE tree itself; fetched by cargo, which checks the checksum, if it is not here."""
    tree = checkout()
    if tree:
        return tree
    cargo = os.environ.get("CARGO") or shutil.which("cargo")
    if not cargo:
        raise Stop(MISSING, "no cargo: install Rust, or set IREE_SOURCE_DIR to an IREE checkout")
    manifest = CSRC / "source" / "Cargo.toml"
    # A build script's environment must not leak into this unrelated workspace.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CARGO_", "RUSTC", "RUSTFLAGS"))}
    for key in ("CARGO_HOME", "CARGO_NET_OFFLINE"):
        if key in os.environ:
            env[key] = os.environ[key]
    command = [cargo, "metadata", "--locked", "--format-version", "1", "--manifest-path", manifest]
    out = subprocess.run(command, capture_output=True, text=True, env=env, cwd=manifest.parent)
    if out.returncode != 0:
        raise Stop(FAILED, f"cargo could not bring the source, exit code {out.returncode}:\n{out.stderr.strip()}")
    for package in json.loads(out.stdout)["packages"]:
        if package["name"] == SOURCE_CRATE:
            tree = Path(package["manifest_path"]).parent / "iree"
            check_version(tree)
            return tree
    raise Stop(FAILED, f"cargo metadata does not name {SOURCE_CRATE}")


def lay_source(tree, target):
    """A patched copy, so that the build never writes to, nor depends on the name of, the original."""
    done = target / ".laid"
    if done.exists():
        return
    shutil.rmtree(target, ignore_errors=True)
    for name in source_files(tree):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / name, path)
        path.chmod(0o755 if os.access(tree / name, os.X_OK) else 0o644)
    for name, old, new in PATCHES:
        path = target / name
        text = path.read_text()
        if text.count(old) != 1:
            raise Stop(MISMATCH, f"the correction for {name} does not fit this source")
        path.write_text(text.replace(old, new))
    done.touch()


# --- the build ------------------------------------------------------------------------------------


def describe(drivers):
    """All inputs, as a value that is hashed for the folder's name and kept in the stamp."""
    (_, cc), (_, cxx) = compilers()
    return {
        "iree": IREE_VERSION,
        "source": source_identity(),
        "drivers": list(drivers),
        "flags": list(FLAGS),
        "defines": list(CONSUMER_DEFINES),
        "cmake_options": list(CMAKE_OPTIONS),
        "patches": sha256(repr(PATCHES).encode()),
        "recipe": sha256(Path(__file__).read_bytes() + (CSRC / "runtime" / "CMakeLists.txt").read_bytes()),
        "tools": sha256((CSRC / "requirements.txt").read_bytes()),
        "headers": sha256((CSRC / "requirements-cuda.txt").read_bytes()) if "cuda" in drivers else "",
        "cc": cc,
        "cxx": cxx,
        "target": f"{platform.system()}-{platform.machine()}",
    }


def output_folder(inputs):
    return OUTPUTS / sha256(json.dumps(inputs, sort_keys=True).encode())[:20]


def cuda_headers(build):
    """A folder shaped like NVIDIA's SDK as IREE's CMake wants it: headers, an empty libdevice."""
    site = site_packages(tools("requirements-cuda.txt"))
    include = site / "nvidia" / "cuda_runtime" / "include"
    if not (include / "cuda.h").exists():
        raise Stop(FAILED, f"the CUDA header package has no cuda.h in {include}")
    sdk = build / "cuda-sdk"
    shutil.rmtree(sdk, ignore_errors=True)
    shutil.copytree(include, sdk / "include")
    # nccl.h includes these two; the driver uses nothing of them but the stream's name.
    (sdk / "include" / "cuda_runtime.h").write_text("#include <cuda.h>\ntypedef CUstream cudaStream_t;\n")
    for name in ("cuda_fp16.h", "cuda_bf16.h"):
        (sdk / "include" / name).write_text("")
    libdevice = sdk / "nvvm" / "libdevice" / "libdevice.10.bc"
    libdevice.parent.mkdir(parents=True)
    libdevice.touch()
    return sdk


def stage(build, source, target, inputs):
    """Lays out include/, lib/, link.txt (what a user of the archive needs) and the stamp in `target`."""
    shutil.rmtree(target, ignore_errors=True)
    lib, include = target / "lib", target / "include"
    lib.mkdir(parents=True)
    generated = build / "iree" / "runtime" / "src"
    for root in (source / "runtime" / "src", generated, source / "third_party" / "flatcc" / "include"):
        for path in sorted(p for s in (".h", ".inc", ".inl") for p in root.rglob(f"*{s}")):
            copy = include / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    archives = {"libhalfhitch_iree.a": "halfhitch_iree", "libflatcc_parsing.a": "flatcc_parsing"}
    for name in archives:
        found = sorted(build.rglob(name))
        if len(found) != 1:
            raise Stop(FAILED, f"expected one {name} in {build}, found {len(found)}")
        shutil.copyfile(found[0], lib / name)
    stamp = dict(inputs)
    stamp["libs"] = list(archives.values())
    stamp["system_libs"] = ["m", "pthread", "dl"] if platform.system() == "Linux" else []
    stamp["frameworks"] = ["Foundation", "Metal"] if "metal" in inputs["drivers"] else []
    stamp["archive_sha256"] = {n: sha256((lib / n).read_bytes()) for n in archives}
    lines = [f"version={stamp['iree']}"]
    lines += [f"{k}={','.join(stamp[k])}" for k in ("drivers", "defines", "libs", "system_libs", "frameworks")]
    (target / "link.txt").write_text("\n".join(lines) + "\n")
    (target / "stamp.json").write_text(json.dumps(stamp, indent=2) + "\n")


def build_runtime(drivers):
    inputs = describe(drivers)
    target = output_folder(inputs)
    if (target / "stamp.json").exists():
        return target
    if "metal" in drivers and platform.system() != "Darwin":
        raise Stop(MISSING, "the metal driver builds on macOS only (its headers come with Xcode)")
    with locked(OUTPUTS):
        if (target / "stamp.json").exists():
            return target
        shutil.rmtree(target, ignore_errors=True)
        iree_compile()  # the version check comes before anything is built
        site = site_packages(tools("requirements.txt"))
        cmake = site / "cmake" / "data" / "bin" / "cmake"
        # The ninja package has kept its binary in two places over time.
        places = (tools("requirements.txt") / "bin" / "ninja", site / "ninja" / "data" / "bin" / "ninja")
        ninja = next((p for p in places if p.exists()), None)
        if not cmake.exists() or not ninja:
            raise Stop(FAILED, "the cmake or ninja package is laid out in an unknown way")
        work = OUTPUTS / f"{target.name}.build"
        source, build, log = work / "source", work / "build", work / "log"
        work.mkdir(exist_ok=True)
        say(f"laying the source of IREE {IREE_VERSION}")
        lay_source(source_tree(), source)
        build.mkdir(exist_ok=True)
        (cc, _), (cxx, _) = compilers()
        flags = " ".join(FLAGS + (f"-ffile-prefix-map={source}=iree", f"-ffile-prefix-map={build}=build"))
        options = CMAKE_OPTIONS + tuple(f"IREE_HAL_DRIVER_{d.upper().replace('-', '_')}=ON" for d in drivers)
        options += (
            f"CMAKE_MAKE_PROGRAM={ninja}",
            f"CMAKE_C_COMPILER={cc}",
            f"CMAKE_CXX_COMPILER={cxx}",
            f"CMAKE_C_FLAGS={flags}",
            f"CMAKE_CXX_FLAGS={flags}",
            f"Python3_EXECUTABLE={sys.executable}",
            f"HALFHITCH_IREE_SOURCE={source}",
        )
        # Flags reach the compiler from here alone; a build script's own settings stay outside.
        env = {k: v for k, v in os.environ.items() if k not in ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")}
        env["ZERO_AR_DATE"] = "1"
        if "cuda" in drivers:
            env["IREE_CUDA_DEPS_DIR"] = str(cuda_headers(work))
        say(f"configuring for {', '.join(drivers)}")
        command = [cmake, "-G", "Ninja", "-S", CSRC / "runtime", "-B", build]
        run(command + [f"-D{o}" for o in options], log, env)
        jobs = os.environ.get("HALFHITCH_JOBS") or str(os.cpu_count() or 1)
        say(f"building, {jobs} jobs")
        run([cmake, "--build", build, "--target", "halfhitch_iree", "flatcc_parsing", "-j", jobs], log, env)
        staged = OUTPUTS / f"{target.name}.stage"
        stage(build, source, staged, inputs)
        os.rename(staged, target)
        shutil.rmtree(work, ignore_errors=True)
        say(f"built {target}")
    return target


# --- commands -------------------------------------------------------------------------------------


def parse_drivers(text):
    chosen = [d for d in text.split(",") if d]
    for driver in chosen:
        if driver not in BASE_DRIVERS + EXTRA_DRIVERS:
            raise Stop(2, f"unknown driver '{driver}': one of {', '.join(BASE_DRIVERS + EXTRA_DRIVERS)}")
    return tuple(d for d in BASE_DRIVERS + EXTRA_DRIVERS if d in BASE_DRIVERS or d in chosen)


def make_hint(drivers):
    extra = [d for d in drivers if d not in BASE_DRIVERS]
    if not extra:
        return "make iree-runtime"
    return f"make iree-runtime-{extra[0]}" if len(extra) == 1 else f"csrc/build-runtime.sh build --drivers {','.join(extra)}"


def print_paths(folder):
    print(f"prefix={folder}")
    print(f"include={folder / 'include'}")
    print(f"lib={folder / 'lib'}")
    print((folder / "link.txt").read_text(), end="")


def environment():
    """What is there, one line a part; nothing is installed, fetched or built."""

    def line(name, value):
        print(f"{name:<12} {value}")

    line("iree", f"{IREE_VERSION} (runtime and compiler)")
    for name, find in (("cc", lambda: compilers()[0]), ("c++", lambda: compilers()[1])):
        try:
            line(name, " - ".join(find()))
        except Stop as stop:
            line(name, f"MISSING: {stop}")
    line("python", f"{sys.executable} {platform.python_version()}")
    line("cargo", shutil.which("cargo") or "MISSING: needed unless IREE_SOURCE_DIR is set")
    try:
        line("source", source_identity())
    except Stop as stop:
        line("source", f"UNUSABLE: {stop}")
    for name in ("requirements.txt", "requirements-cuda.txt"):
        tag = sha256((CSRC / name).read_bytes())[:16]
        found = [p.parent for p in TOOLS.glob(f"{Path(name).stem}-py*-{tag}/stamp")]
        line(Path(name).stem, found[0] if found else "not installed (comes with the first build that needs it)")
    stamps = sorted(OUTPUTS.glob("*/stamp.json"))
    for stamp in stamps:
        line("built", f"{','.join(json.loads(stamp.read_text())['drivers'])} in {stamp.parent}")
    if not stamps:
        line("built", "nothing yet: make iree-runtime")


def main():
    parser = argparse.ArgumentParser(prog="build-runtime.sh", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("build", "build the runtime for these drivers, if it is not there; print its folder"),
        ("print-paths", "print key=value lines of a built runtime; exit code 3 when it is absent"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--drivers", default="", help="besides the local ones: cuda, vulkan, metal")
    commands.add_parser("compiler", help="install the pinned compiler, if it is not there; print iree-compile's path")
    commands.add_parser("env", help="print what is there")
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):
        raise Stop(MISSING, f"Python {platform.python_version()} is too old: 3.11 or later is needed")
    if arguments.command == "env":
        environment()
    elif arguments.command == "compiler":
        print(iree_compile())
    else:
        drivers = parse_drivers(arguments.drivers)
        if arguments.command == "build":
            print(build_runtime(drivers))
            return
        folder = output_folder(describe(drivers))
        if not (folder / "stamp.json").exists():
            raise Stop(NOT_BUILT, f"the IREE runtime for {', '.join(drivers)} is not built: run `{make_hint(drivers)}`")
        print_paths(folder)


if __name__ == "__main__":
    try:
        main()
    except Stop as stop:
        say(f"error: {stop}")
        sys.exit(stop.code)
