"""Processes of a soak: waiting for them, finding them, what they take, and files that they may be using."""

import shutil
import subprocess
from pathlib import Path

# Set in the environment of every session, with its number.
MARK = "HALFHITCH_SOAK"
# A session that hangs is a failure, not the end of the soak: seconds, of which a pause of the whole machine
# counts for one. The first session compiles.
LIMIT = 600


def communicate(process, text):
    """What a process says until its end. Waits in steps: a clock that jumps brings nobody to an end."""
    for step in range(LIMIT):
        try:
            return process.communicate(text if step == 0 else None, timeout=1)
        except subprocess.TimeoutExpired:
            if step == LIMIT - 1:
                raise


def marked(session):
    """Processes that carry a session's mark and run, with their names."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"{MARK}={session}".encode() in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state not in "ZX":
                    found.append((int(entry.name), (entry / "comm").read_text().strip()))
        except OSError:
            continue
    return found


def resident(pid):
    """KiB that a process has resident; 0 where it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def remove(place):
    """A file or a folder, which may go by itself meanwhile."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
