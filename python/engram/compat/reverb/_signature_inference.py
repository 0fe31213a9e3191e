"""Infers a table's signature from the configs that create its items."""

from collections.abc import Sequence
from typing import Any

from engram.compat.reverb import _arguments, _nest
from engram.compat.reverb._configs import Config, PatternNode
from engram.compat.reverb.tensor_spec import TensorSpec, as_public_spec
from engram.nests import Nest

__all__ = ["infer_signature", "unpack_pattern"]


def unpack_pattern(config: Config) -> Nest:
    """Returns the pattern of `config`: a nest of `PatternNode`s, or a flat list if `pattern_structure` is unset.

    Raises:
        TypeError: `config` is not a `Config`.
        ValueError: `pattern_structure` and `flat` differ in their number of columns.
    """
    _arguments.instance("config", config, Config, "a Config")
    if not config.HasField("pattern_structure"):
        return config.flat
    return _nest.unflatten_as(config.pattern_structure.nest, list(config.flat))


def infer_signature(configs: Sequence[Config], step_spec: Nest) -> Nest:
    """Returns the signature of the table that configs create items for.

    Args:
        configs: All configs of the table.
        step_spec: A nest with the structure of a step. The leaves that configs read must have a shape `[...]` and a
            dtype: specs or arrays.

    Returns:
        A nest of `TensorSpec` with the structure of the configs' pattern; TensorFlow's specs if TensorFlow is imported.
        Shapes are `[T, ...]`, or `[...]` without a time axis. T is None if the configs differ in it. The name of a spec
        is the path of its column, joined by `/`.

    Raises:
        TypeError: A config is not a `Config`, or a leaf that configs read has no shape, no dtype or no supported dtype.
        ValueError: There are no configs, they differ in table or structure, one reads a leaf that steps do not have, or
            their columns differ in dtype or shape.
    """
    for config in configs:
        _arguments.instance("each of configs", config, Config, "a Config")
    if not configs:
        raise ValueError("At least one config must be provided.")
    first = configs[0]
    if any(_structure(config) != _structure(first) for config in configs):
        raise ValueError("All configs must have exactly the same pattern_structure.")
    tables = sorted({config.table for config in configs})
    if len(tables) > 1:
        raise ValueError(f"All configs must target the same table but provided configs included {', '.join(tables)}.")
    leaves = _nest.flatten(step_spec)
    pattern = unpack_pattern(first)
    paths = [path for path, _ in _nest.flatten_with_path(pattern)]
    columns = zip(*[config.flat for config in configs], strict=True)
    specs = [_merged(path, nodes, leaves) for path, nodes in zip(paths, columns, strict=True)]
    return _nest.unflatten_as(pattern, specs)


def _spec(leaf: Any) -> TensorSpec:  # noqa: ANN401, anything
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TypeError(
            f"leaves of `step_spec` that configs read must have a shape and a dtype; got {_arguments.describe(leaf)}"
        )
    return TensorSpec(leaf.shape, leaf.dtype)


def _structure(config: Config) -> Any:  # noqa: ANN401, what can be compared
    return config.pattern_structure if config.HasField("pattern_structure") else len(config.flat)


def _merged(path: tuple[Any, ...], nodes: Sequence[PatternNode], leaves: Sequence[Any]) -> Any:  # noqa: ANN401, a spec
    """Returns the spec of one column, for which each config has a node; `leaves` are those of a step."""
    last = max(node.flat_source_index for node in nodes)
    if last >= len(leaves):
        count = "1 leaf" if len(leaves) == 1 else f"{len(leaves)} leaves"
        raise ValueError(
            f"{f'Column {path}' if path else 'The only column'} of the configs reads leaf {last} of a step "
            f"(`flat_source_index`, from 0), but `step_spec` has only {count}."
        )
    specs = [_spec(leaves[node.flat_source_index]) for node in nodes]
    dtypes = [spec.dtype for spec in specs]
    place = f" at {path}" if path else ""
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise ValueError(f"Configs produce trajectories with multiple dtypes{place}. Got {dtypes}.")
    shapes = [_shape(node, spec.shape) for node, spec in zip(nodes, specs, strict=True)]
    merged = shapes[0]
    compatible = all(
        shape == merged if shape is None or merged is None else len(shape) == len(merged) and shape[1:] == merged[1:]
        for shape in shapes
    )
    if not compatible:
        raise ValueError(f"Configs produce trajectories with incompatible shapes{place}. Got {shapes}.")
    if merged is not None and any(shape != merged for shape in shapes):
        merged = (None, *merged[1:])
    return as_public_spec(TensorSpec(merged, dtypes[0], "/".join(str(part) for part in path)))


def _shape(node: PatternNode, shape: tuple[int | None, ...] | None) -> tuple[int | None, ...] | None:
    """Returns the shape of a node's column, given that of its leaf; None is an unknown shape."""
    start, stop, step, squeeze = node.window()
    if squeeze or shape is None:
        return shape
    return (len(range(start, stop, step)), *shape)
