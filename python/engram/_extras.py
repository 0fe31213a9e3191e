"""Errors for optional packages that are not installed: they name the extra that installs the package."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["importing_extra"]

_PACKAGES = {
    "PIL": "Pillow",
    "ale_py": "the Arcade Learning Environment (ale-py)",
    "cv2": "OpenCV",
    "dm_env": "dm_env",
    "equinox": "Equinox",
    "google": "protobuf",
    "google.protobuf": "protobuf",
    "gymnasium": "Gymnasium",
    "h5py": "h5py",
    "jax": "JAX",
    "jaxlib": "JAX",
    "fastapi": "NiceGUI",
    "matplotlib": "Matplotlib",
    "minari": "Minari",
    "nicegui": "NiceGUI",
    "optax": "Optax",
    "orbax": "Orbax (orbax-checkpoint)",
    "orbax.checkpoint": "Orbax (orbax-checkpoint)",
    "pyarrow": "PyArrow",
    "ray": "Ray",
    "tensorboardX": "tensorboardX",
    "tensorflow": "TensorFlow",
    "threadpoolctl": "threadpoolctl",
    "torch": "PyTorch",
    "uvicorn": "NiceGUI",
}
"""Import name -> name in error texts."""


@contextmanager
def importing_extra(extra: str, feature: str) -> Iterator[None]:
    """Replaces an import error in the block by one that names the extra to install; other errors pass unchanged.

        with importing_extra("torch", "engram.data.torch"):
            import torch

    Args:
        extra: The extra of this package that installs what the block imports, for example `"torch"`.
        feature: What needs the import, as the start of the error text.

    Raises:
        ModuleNotFoundError: A package of the extra is not installed; `name` is the package's import name.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(error.name or "")
        if package is None:
            raise
        raise ModuleNotFoundError(
            f"{feature} needs {package}, which is not installed; install it with "
            f"`pip install 'engram-replay[{extra}]'`",
            name=error.name,
            path=error.path,
        ) from error
