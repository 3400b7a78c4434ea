"""From samples to medians, ratios, a table and a plot."""

import statistics
from xml.sax.saxutils import escape

MEASURES = [
    ("decode_tokens_per_s", "decode"),
    ("prefill_tokens_per_s", "prefill"),
]

# Which ratios are worth stating: ours, the other, of what.
COMPARISONS = [
    ("halfhitch f32 4-bit", "llama.cpp Q4_1", "decode"),
    ("halfhitch f32 4-bit", "llama.cpp Q4_0", "decode"),
    ("halfhitch bf16 4-bit", "llama.cpp Q4_1", "decode"),
    ("halfhitch bf16 4-bit", "llama.cpp Q4_0", "decode"),
    ("halfhitch f16 dense", "llama.cpp f16", "decode"),
    ("halfhitch f32 dense", "llama.cpp f32", "decode"),
    ("halfhitch f32 4-bit", "halfhitch f16 dense", "decode"),
    ("halfhitch f16 dense", "halfhitch f32 dense", "decode"),
    ("halfhitch f32 4-bit", "llama.cpp f16", "prefill"),
    ("halfhitch f32 4-bit", "llama.cpp Q4_1", "prefill"),
    ("halfhitch f32 4-bit", "llama.cpp Q4_0", "prefill"),
    ("halfhitch bf16 4-bit", "llama.cpp Q4_0", "prefill"),
    ("halfhitch f32 4-bit", "candle Q4_1", "decode"),
    ("halfhitch f32 4-bit", "MLX 4-bit, f32", "decode"),
]


def spread(values):
    values = [v for v in values if v is not None]
    if not values:
        return None
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": values,
    }


def collect(name, engines, left_out, workload, args, machine, versions):
    rows = []
    for engine in engines:
        own = engine.workload or workload
        for threads, samples in sorted(engine.samples.items(), key=lambda item: item[0] or 0):
            figures = {}
            for key in samples[0][1]:
                figures[key] = spread([sample[key] for _, sample in samples])
            rows.append(
                {
                    "engine": engine.name,
                    "family": engine.family,
                    "numbers": engine.numbers,
                    "threads": threads,
                    "prefill": own.prefill,
                    "decode": own.decode,
                    "agreement": engine.agreement,
                    "figures": figures,
                }
            )
    return {
        "set": name,
        "machine": machine,
        "versions": versions,
        "rounds": args.rounds,
        "workload": {"prefill": workload.prefill, "decode": workload.decode},
        "engines": rows,
        "left_out": left_out,
        "ratios": ratios(engines),
    }


def ratios(engines):
    by_name = {engine.name: engine for engine in engines}
    found = []
    for ours, other, what in COMPARISONS:
        if ours not in by_name or other not in by_name:
            continue
        key = f"{what}_tokens_per_s"
        theirs = by_name[other].samples
        for threads, samples in by_name[ours].samples.items():
            # An engine without threads is compared with every number of them.
            rounds = dict(theirs.get(threads) or theirs.get(None) or [])
            each = [s[key] / rounds[r][key] for r, s in samples if r in rounds]
            if each:
                found.append(
                    {
                        "ours": ours,
                        "other": other,
                        "what": what,
                        "threads": threads,
                        "ratio": spread(each),
                    }
                )
    return found


def number(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def cell(figure, scale=1.0):
    if figure is None:
        return "-"
    low, high = number(scale * figure["min"]), number(scale * figure["max"])
    return f"{number(scale * figure['median'])} ({low}-{high})"


def markdown(report, chart_name):
    workload, machine = report["workload"], report["machine"]
    what = {
        "smollm2": "SmolLM2-135M-Instruct, one set of weights: those of the Q4_1 file",
        "1b": "a model of Llama-3.2-1B's shape, random weights, the same in every form",
    }[report["set"]]
    versions = "; ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [
        "# Beside other engines",
        "",
        f"{what}. Written by `make bench-{'peers' if report['set'] == 'smollm2' else '1b'}`; all values in "
        f"the JSON file beside this.",
        "",
        f"Tokens a second, median (smallest-largest) of {report['rounds']} rounds in which all took turns: a "
        f"prompt of {workload['prefill']} tokens, and {workload['decode']} tokens after a prompt of 32. "
        f"{machine['cores']} cores with {', '.join(machine['extensions']) or 'no vector extensions'}; "
        f"{100 * (machine['busy_before'] or 0):.0f} % of them were busy before it began.",
        "",
        f"![plot]({chart_name})",
        "",
        "| engine | threads | decode | prefill | first token, ms | load, s | memory, MiB | of bandwidth |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    notes = []
    for row in report["engines"]:
        figures = row["figures"]
        name = row["engine"]
        if (row["prefill"], row["decode"]) != (workload["prefill"], workload["decode"]):
            notes.append(
                f"{name} was given a prompt of {row['prefill']} and {row['decode']} tokens to decode, in "
                f"{len(figures['decode_tokens_per_s']['values'])} rounds: it would have taken most of the time."
            )
        if row["numbers"] == "requantised":
            notes.append(
                f"{name} has other weights, rounded once more from the same file: faster kernels want them so."
            )
        share = figures.get("bandwidth_share")
        share = f"{100 * share['median']:.0f} %" if share else ""
        peak = figures["peak_rss_bytes"]
        lines.append(
            f"| {name} | {row['threads'] or 'its own'} | {cell(figures['decode_tokens_per_s'])} "
            f"| {cell(figures['prefill_tokens_per_s'])} "
            f"| {1e3 * figures['first_token_s']['median']:.0f} "
            f"| {figures['load_s']['median']:.2f} "
            f"| {peak['median'] / 2**20:.0f} "
            f"| {share} |"
        )
    lines += ["", "## Ratios", "", "Within a round; then the median (smallest-largest).", ""]
    lines += ["| | | threads | |", "| --- | --- | --- | --- |"]
    for one in report["ratios"]:
        ratio = one["ratio"]
        lines.append(
            f"| {one['what']}: {one['ours']} | over {one['other']} | {one['threads']} "
            f"| {ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f}) |"
        )
    lines += ["", "## Notes", ""]
    lines += [f"* {note}" for note in dict.fromkeys(notes)]
    lines += [f"* {name} was left out: {why}" for name, why in report["left_out"].items()]
    agreement = dict((row["engine"], row["agreement"]) for row in report["engines"])
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in agreement.items())
    lines += [f"* Tokens as the oracle has them, before the first fork: {shares}.", f"* {versions}."]
    return "\n".join(lines) + "\n"


# The plot: a panel a measure, a row an engine, a bar a number of threads.
WIDTH, LABEL, BAR, GAP, TOP = 860, 190, 13, 12, 64
COLOURS = {"halfhitch": ("#0b6e4f", "#5fb89a"), "": ("#5a6472", "#a9b2bd")}


def chart(report):
    threads = sorted({row["threads"] or 0 for row in report["engines"]} - {0}) or [1]
    names = list(dict.fromkeys(row["engine"] for row in report["engines"]))
    row_height = BAR * len(threads) + GAP
    panel = TOP + row_height * len(names)
    height = panel * len(MEASURES) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (key, what) in enumerate(MEASURES):
        parts += chart_panel(report, key, what, names, threads, index * panel, row_height)
    legend = ", ".join(
        f"{'darker' if i == 0 else 'lighter'}: {n} thread{'s' if n != 1 else ''}"
        for i, n in enumerate(threads[:2])
    )
    note = f"{legend}; a line from the slowest to the fastest round"
    parts.append(f'<text x="{LABEL}" y="{height - 12}" fill="#444">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def chart_panel(report, key, what, names, threads, top, row_height):
    rows = report["engines"]
    most = max(row["figures"][key]["max"] for row in rows)
    scale = (WIDTH - LABEL - 70) / most
    length = report["workload"][what]
    yield f'<text x="{LABEL}" y="{top + 34}" font-size="15">{what}, {length} tokens: tokens a second</text>'
    for line, name in enumerate(names):
        y = top + TOP - 14 + line * row_height
        middle = y + BAR * len(threads) / 2 + 4
        own = [row for row in rows if row["engine"] == name]
        label = name if own[0][what] == length else f"{name}, {own[0][what]} tokens"
        yield f'<text x="{LABEL - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>'
        for row in own:
            place = threads.index(row["threads"]) if row["threads"] in threads else 0
            figure = row["figures"][key]
            colours = COLOURS.get(row["family"], COLOURS[""])
            at = y + place * BAR
            low, value, high = (LABEL + scale * figure[k] for k in ("min", "median", "max"))
            centre = at + (BAR - 2) / 2
            yield (
                f'<rect x="{LABEL}" y="{at}" width="{value - LABEL:.1f}" height="{BAR - 2}" '
                f'fill="{colours[min(place, 1)]}"/>'
            )
            yield (
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{centre}" y2="{centre}" stroke="#111" '
                f'stroke-width="1"/>'
            )
            yield (
                f'<text x="{high + 6:.1f}" y="{at + BAR - 3}" font-size="11" fill="#333">'
                f"{number(figure['median'])}</text>"
            )
