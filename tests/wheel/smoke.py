"""Smoke test of an installed wheel; `make test-wheel` runs it in environments without test packages."""

import sys
from importlib.metadata import version

import numpy as np

import engram


def main() -> None:
    """Writes, samples and updates as in the README, and checks the results."""
    table = engram.Table("replay", max_size=1000, sampler=engram.selectors.Prioritized(0.6))
    with engram.Store([table], seed=0) as store:
        with store.writer(history=2) as writer:
            for t in range(101):
                writer.append({"obs": np.full(4, t, np.float32), "action": t % 2})
                if t > 0:
                    writer.create_item("replay", num_steps=2)

        batch = store.sample("replay", 32)
        assert batch.data["obs"].shape == (32, 2, 4)
        first, second = batch.data["obs"][:, 0, 0], batch.data["obs"][:, 1, 0]
        assert (second == first + 1).all()
        assert batch.importance_weights(beta=0.5).shape == (32,)

        keys = np.unique(batch.info.key)
        assert store.update_priorities("replay", keys, np.full(len(keys), 2.0)) == len(keys)
        assert store.info()["replay"].size == 100

    python = "{}.{}.{}".format(*sys.version_info)
    assert engram.__version__ == version("engram-replay")
    print(f"engram {engram.__version__} works on Python {python}, NumPy {np.__version__}")  # noqa: T201


if __name__ == "__main__":
    main()
