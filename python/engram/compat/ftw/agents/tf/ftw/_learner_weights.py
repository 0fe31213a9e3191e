"""The state of a learner by the published names: parameters and optimizer statistics of each network."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from engram._extras import importing_extra
from engram.agents.ftw.agent_networks import AgentNetworks
from engram.agents.ftw.learner import LearnerState
from engram.errors import InvalidArgumentError
from engram.nests import Nest

with importing_extra("agents", "engram.compat.ftw"):
    import jax
    import jax.numpy as jnp

_NAMES = {
    "policy": ("policy_network", "optimizer"),
    "pixel_control": ("pixel_control_network", "pixel_control_optimizer"),
    "reward_prediction": ("reward_prediction_network", "reward_prediction_optimizer"),
}
"""For each part of `AgentNetworks`, the names of its parameters, and of the mean squares of their gradients.

With separate optimizers, the latter are the task's mean squares of the gradients of all parameters.
"""


class LearnerWeights(NamedTuple):
    """The weights of a learner's state."""

    learner_state: LearnerState

    def trees(self) -> dict[str, Any]:
        """Returns pytrees by name."""
        state, trees = self.learner_state, {}
        optimizers: Any = state.optimizer
        for index, (part, (network, optimizer)) in enumerate(_NAMES.items()):
            params = getattr(state.params, part)
            if params is not None:
                trees[network] = params
                trees[optimizer] = (
                    optimizers[index].mean_square.nu if self._is_separate else getattr(optimizers.mean_square.nu, part)
                )
        return trees

    def arrays(self) -> dict[str, list[Any]]:
        """Returns the NumPy arrays of each tree."""
        return {name: [np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for name, tree in self.trees().items()}

    def replaced(self, weights: Mapping[str, Sequence[Any]]) -> LearnerState:
        """Returns the state with other arrays, which must have the same names, numbers and shapes."""
        trees = self.trees()
        if set(weights) != set(trees):
            raise InvalidArgumentError(f"`weights`: wrong names; got {sorted(weights)}, expected {sorted(trees)}")
        new = {name: _replaced(name, tree, weights[name]) for name, tree in trees.items()}
        parts = [(new.get(network), new.get(optimizer)) for network, optimizer in _NAMES.values()]
        memory = self.learner_state.params.memory
        params, squares = (
            AgentNetworks(policy, control, prediction, memory)
            for policy, control, prediction in zip(*parts, strict=True)
        )
        optimizer: Any = self.learner_state.optimizer
        if self._is_separate:
            each = zip(optimizer, [new.get(name) for _, name in _NAMES.values()], strict=True)
            optimizer = tuple(old if nu is None else _with_squares(old, nu) for old, nu in each)
        else:
            optimizer = _with_squares(optimizer, squares)
        return self.learner_state._replace(params=params, optimizer=optimizer)

    def with_step(self, step: int) -> LearnerState:
        """Returns the state after this number of updates."""
        optimizer: Any = self.learner_state.optimizer
        count = jnp.asarray(step, jnp.int32)
        if self._is_separate:
            return self.learner_state._replace(optimizer=tuple(each._replace(step=count) for each in optimizer))  # type: ignore[arg-type]  # see separate_optimizers
        return self.learner_state._replace(optimizer=optimizer._replace(step=count))

    @property
    def _is_separate(self) -> bool:
        return not hasattr(self.learner_state.optimizer, "mean_square")


def _with_squares(optimizer: Any, squares: Any) -> Any:  # noqa: ANN401, OptimizerState and a pytree
    return optimizer._replace(mean_square=optimizer.mean_square._replace(nu=squares))


def _replaced(name: str, tree: Nest, arrays: Sequence[Any]) -> Nest:
    leaves, structure = jax.tree.flatten(tree)
    found, expected = [np.shape(array) for array in arrays], [leaf.shape for leaf in leaves]
    if found != expected:
        raise InvalidArgumentError(f"`weights[{name!r}]`: wrong arrays; got the shapes {found}, expected {expected}")
    converted = [jnp.asarray(array, leaf.dtype) for array, leaf in zip(arrays, leaves, strict=True)]
    return jax.tree.unflatten(structure, converted)
