"""Heads of Gaussian distributions. They return means and scales, from which `sample` draws with given noise."""

import jax

from engram import _checks
from engram.agents.ftw.networks import GaussianHead, GaussianHeadConfig, LocScaleDistributionParameters
from engram.agents.ftw.networks.initializers import Initializer
from engram.compat.ftw.tf.networks._lazy_module import LazyModule, Seed

__all__ = ["LocScaleDistributionParameters", "MultivariateNormalDiagHead", "MultivariateNormalDiagLocScaleHead"]

_SMALL_WEIGHTS = jax.nn.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")


class MultivariateNormalDiagLocScaleHead(LazyModule):
    """Linear functions to mean and scale; see `engram.agents.ftw.networks.GaussianHead`."""

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        num_dimensions: int,
        init_scale: float = 0.3,
        min_scale: float = 1e-6,
        tanh_mean: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        fixed_scale: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        w_init: Initializer | None = None,
        b_init: Initializer | None = None,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments; the weights are made at the first call.

        Args:
            num_dimensions: Dimensions of the distribution, Z.
            init_scale: Scale where its layer returns 0.
            min_scale: Is added to the scale.
            tanh_mean: Whether the mean is bounded to (-1, 1).
            fixed_scale: Whether the scale is `init_scale`.
            w_init: Initial weights, as one of `jax.nn.initializers`. Default: Sonnet's.
            b_init: Initial biases, as one of `jax.nn.initializers`. Default: zeros.
            seed: Seed of the weights.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value.
        """
        super().__init__(seed)
        self._num_dimensions = _checks.integer("`num_dimensions`", num_dimensions)
        self._config = GaussianHeadConfig(init_scale, min_scale, tanh_mean, fixed_scale, w_init, b_init)

    def __call__(self, features: jax.Array) -> LocScaleDistributionParameters:
        """Maps features `[..., I]` to means and scales `[..., Z]`."""
        self._make_module(lambda key: GaussianHead(features.shape[-1], self._num_dimensions, self._config, key=key))
        params: LocScaleDistributionParameters = self.module(features)
        return params


class MultivariateNormalDiagHead(MultivariateNormalDiagLocScaleHead):
    """The same with small initial weights.

    It returns means and scales, too, not a distribution of TensorFlow Probability.
    """

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        num_dimensions: int,
        init_scale: float = 0.3,
        min_scale: float = 1e-6,
        tanh_mean: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        fixed_scale: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        use_tfd_independent: bool = False,  # noqa: FBT001, FBT002, FTW's signature
        w_init: Initializer = _SMALL_WEIGHTS,
        b_init: Initializer = jax.nn.initializers.zeros,
        *,
        seed: Seed | None = None,
    ) -> None:
        """Checks the arguments; the weights are made at the first call.

        The other arguments and errors are those of `MultivariateNormalDiagLocScaleHead`.

        Args:
            use_tfd_independent: No effect: it selects a class of TensorFlow Probability.
            w_init: Initial weights, as one of `jax.nn.initializers`. Default: variance 1e-4 / fan-in.
        """
        _checks.boolean("`use_tfd_independent`", use_tfd_independent)
        super().__init__(num_dimensions, init_scale, min_scale, tanh_mean, fixed_scale, w_init, b_init, seed=seed)
