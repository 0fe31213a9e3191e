"""Descriptions of the tables that interop programs use, from which both servers create their tables."""

import json


def spec(name, dtype, shape, minimum=None, maximum=None):
    """A leaf of a signature; bounds are `(shape, base64 of the bytes)`."""
    bounds = {}
    if minimum is not None:
        both = {"minimum": minimum, "maximum": maximum}
        bounds = {key: {"shape": bound[0], "data": bound[1]} for key, bound in both.items()}
    return {"spec": {"name": name, "dtype": dtype, "shape": shape, **bounds}}


STEP = {
    "dict": {
        "action": {"tuple": [spec("a", "int32", []), spec("b", "bool", [2])]},
        "observation": spec("obs", "float32", [3]),
    }
}
SEQUENCE = {
    "dict": {
        "action": {"list": [spec("a", "int32", [None])]},
        "observation": spec("obs", "float32", [None, 3]),
    }
}
ODD = {
    "tuple": [
        {
            "namedtuple": {
                "name": "Pair",
                "fields": [["x", spec("x", "float64", [2])], ["y", spec(None, "string", None)]],
            }
        },
        spec("bounded", "int16", [], ([], "//8="), ([], "BwA=")),
        {"list": []},
    ]
}


def table(name, **options):
    """Describes a table: Reverb's arguments, with selectors and rate limiters by name."""
    return {
        "name": name,
        "sampler": ["Fifo"],
        "remover": ["Fifo"],
        "max_size": 1000,
        "limiter": ["MinSize", 1],
        "max_times_sampled": 0,
        "signature": None,
        **options,
    }


def queue(name, max_size=1000, **options):
    """Describes a table whose items are sampled once, in order."""
    return table(name, max_size=max_size, limiter=["Queue", max_size], max_times_sampled=1, **options)


TABLES = [
    queue("types"),
    queue("strings"),
    *(queue(f"legacy_{length}_{delta}") for length in (1, 2, 3, 7) for delta in (0, 1)),
    *(queue(f"trajectory_{length}") for length in (1, 2, 5)),
    queue("several_1"),
    queue("several_2"),
    queue("structured"),
    queue("structured_end"),
    queue("partial"),
    queue("sparse"),
    table("steps", signature=STEP),
    table("sequences", signature=SEQUENCE),
    queue("timeout", signature=SEQUENCE),
    queue("odd", signature=ODD),
    table("mutated", sampler=["MaxHeap"], max_size=5),
    table("weighted", sampler=["Prioritized", 0.5], remover=["Lifo"], max_times_sampled=-1),
    table("lowest", sampler=["MinHeap"], remover=["MinHeap"], max_size=3),
    table("reset"),
    table("thrice", max_times_sampled=3),
    table("uniform", sampler=["Uniform"], limiter=["SampleToInsertRatio", 2.0, 5, 10.0], max_size=50),
    queue("blocked", max_size=2),
    queue("large"),
    queue("errors", signature=STEP),
    table("repeated"),
    table("graph"),
    queue("random"),
]


def note(description):
    """The note that `engram.compat.reverb` stores with such a table."""
    keys = ("max_times_sampled", "signature")
    return json.dumps({"reverb": {key: description[key] for key in keys}})


def create_table(reverb, description, signature):
    """Creates the table of a description with the package `reverb`: dm-reverb or `engram.compat.reverb`.

    The signature has that package's specs.
    """

    def selector(name, *arguments):
        return getattr(reverb.selectors, name)(*arguments)

    limiter, *arguments = description["limiter"]
    return reverb.Table(
        name=description["name"],
        sampler=selector(*description["sampler"]),
        remover=selector(*description["remover"]),
        max_size=description["max_size"],
        rate_limiter=getattr(reverb.rate_limiters, limiter)(*arguments),
        max_times_sampled=description["max_times_sampled"],
        signature=signature,
    )
