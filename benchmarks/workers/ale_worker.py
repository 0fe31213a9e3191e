"""Plays Pong with random actions and records the frames, so that engines store real frames, not only noise."""

import ale_py
import numpy as np
from ale_py import roms
from PIL import Image

from benchmarks.workers import common
from benchmarks.workers.common import Task

FRAMES = 4096
REPEAT = 4  # emulator frames per action; the last one is recorded


def record(task: Task) -> float:
    """Writes `FRAMES` grey frames of 84 x 84 pixels to `common.PONG`; returns how many."""
    del task
    game = ale_py.ALEInterface()
    game.setInt("random_seed", 0)
    game.loadROM(roms.get_rom_path("pong"))
    actions = game.getMinimalActionSet()
    choices = np.random.default_rng(0)
    frames = np.empty((FRAMES, 84, 84), np.uint8)
    for frame in frames:
        if game.game_over():
            game.reset_game()
        action = actions[choices.integers(len(actions))]
        for _ in range(REPEAT):
            game.act(action)
        screen = Image.fromarray(game.getScreenGrayscale())
        frame[:] = np.asarray(screen.resize((84, 84), Image.Resampling.BOX))
    unfinished = common.PONG.with_suffix(".new.npy")
    np.save(unfinished, frames)
    unfinished.rename(common.PONG)
    return float(len(frames))


if __name__ == "__main__":
    common.run_task(["ale-py", "numpy"], {"record": record})
