"""The table of README.md: rows of the main table of docs/performance.md, with the best figure of each in bold."""

import re

# Title, and the rows of the page (workload and engine) whose medians are shown for Engram, dm-reverb and cpprb.
ROWS = (
    (
        "insert, one item per step",
        ("insert_trajectory", "Engram, trajectory writer, `num_steps=2`"),
        ("insert_trajectory", "Reverb, trajectory writer"),
        ("insert_batched", "cpprb, `add` of one transition"),
    ),
    (
        "insert, 64 environments at once",
        ("insert_batched", "Engram, batched writer, 64 environments"),
        None,
        ("insert_batched", "cpprb, `add` of 64 transitions"),
    ),
    *(
        (
            f"sample batches of 256, {kind}",
            (f"sample_{kind}", "Engram, `store.sample`"),
            (f"sample_{kind}", "Reverb, in-process dataset"),
            (f"sample_{kind}", "cpprb, `sample`"),
        )
        for kind in ("uniform", "prioritized")
    ),
    (
        "update 256 priorities",
        ("update_priorities", "Engram, `update_priorities`"),
        ("update_priorities", "Reverb, `client.mutate_priorities`"),
        ("update_priorities", "cpprb, `update_priorities`"),
    ),
    (
        "memory per item of 2 steps",
        ("bytes_per_item", "Engram, pattern writer"),
        ("bytes_per_item", "Reverb, trajectory writer"),
        None,
    ),
)
# Holds for runs of `python -m benchmarks --runs 3` on two cores, which are the ones to publish.
HEAD = "| in process, 2 cores, median of 3 runs | Engram | dm-reverb 0.14 | cpprb 11 |\n| --- | ---: | ---: | ---: |\n"
NO_FIGURE = "not measured"


def table(section: str) -> str:
    """Renders README's table from the main table of docs/performance.md; a row that it lacks is "not measured"."""
    medians: dict[tuple[str, str], str] = {}
    workload = ""
    for line in section.splitlines():
        if line.startswith("|"):
            name, engine, median, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            workload = name.strip("`") or workload
            medians[workload, engine] = median
    lines = []
    for title, *sources in ROWS:
        cells = [medians.get(source, NO_FIGURE) if source else NO_FIGURE for source in sources]
        best = (min if "memory" in title else max)(filter(None, map(_figure, cells)), default=None)
        cells = [f"**{cell}**" if best is not None and _figure(cell) == best else cell for cell in cells]
        lines.append(f"| {title} | {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def _figure(cell: str) -> float | None:
    match = re.match(r"[\d,.]+", cell)
    return float(match[0].replace(",", "")) if match else None
