"""The signature of a table whose items configs make."""

from collections.abc import Sequence
from typing import Any

from engram.compat.reverb import _arguments, _nest
from engram.compat.reverb._configs import Config, PatternNode
from engram.compat.reverb.tensor_spec import TensorSpec, public

__all__ = ["infer_signature", "unpack_pattern"]


def unpack_pattern(config: Config) -> Any:  # noqa: ANN401, a nest of `PatternNode`s
    """The pattern that a config was made of, a nest of `PatternNode`s; a flat list where it does not say how it nests.

    Args:
        config: Made by `create_config`, or by hand.

    Raises:
        TypeError: It is no `Config`.
        ValueError: It nests another number of columns than it has.
    """
    _arguments.instance("config", config, Config, "a Config")
    if not config.HasField("pattern_structure"):
        return config.flat
    return _nest.unflatten_as(config.pattern_structure.nest, list(config.flat))


def infer_signature(configs: Sequence[Config], step_spec: Any) -> Any:  # noqa: ANN401, nests of specs
    """The signature of the table that configs make items for.

    Args:
        configs: All of that table.
        step_spec: A nest like a step. Leaves that configs read have a shape `[...]` and a dtype: specs, or arrays.

    Returns:
        A nest of `TensorSpec` like the configs' patterns, TensorFlow's where that has been imported: `[T, ...]`, or
        `[...]` for a column without a time axis. Where the configs differ in T, it is None. Their names are the paths
        of the columns, joined by `/`.

    Raises:
        TypeError: A config is no `Config`, or a leaf that one reads has no shape and dtype, or one that specs do not
                take.
        ValueError: There are no configs, they make items for several tables or of several structures, one reads a leaf
            that steps do not have, or their columns differ in dtype or shape.
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
    last = max(node.flat_source_index for node in nodes)
    if last >= len(leaves):
        raise ValueError(f"Configs read leaf {last} of a step at {path}; the step has {len(leaves)} leaves.")
    specs = [_spec(leaves[node.flat_source_index]) for node in nodes]
    dtypes = [spec.dtype for spec in specs]
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise ValueError(f"Configs produce trajectories with multiple dtypes at {path}. Got {dtypes}.")
    shapes = [_shape(node, spec.shape) for node, spec in zip(nodes, specs, strict=True)]
    one = shapes[0]
    alike = all(
        shape == one if shape is None or one is None else len(shape) == len(one) and shape[1:] == one[1:]
        for shape in shapes
    )
    if not alike:
        raise ValueError(f"Configs produce trajectories with incompatible shapes at {path}. Got {shapes}.")
    if one is not None and any(shape != one for shape in shapes):
        one = (None, *one[1:])
    return public(TensorSpec(one, dtypes[0], "/".join(str(part) for part in path)))


def _shape(node: PatternNode, shape: tuple[int | None, ...] | None) -> tuple[int | None, ...] | None:
    start, stop, step, squeeze = node.window()
    if squeeze or shape is None:
        return shape
    return (len(range(start, stop, step)), *shape)
