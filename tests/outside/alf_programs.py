"""Runs ALF's tests of its replay buffers, and trains ALF's algorithms, with Engram's buffers instead.

    ALF_ROOT=~/alf PYTHONPATH=python python tests/outside/alf_programs.py tests ddpg sarsa --seeds 5

`tests` are ALF's tests of replay buffers, data buffers and segment trees. `ddpg` (with goals in hindsight) and `sarsa`
(with priorities) train twice per seed, with ALF's buffer and with Engram's: all batches and losses must be the same.

ALF is not on PyPI: this needs a checkout, PyTorch, absl-py, cnest, einops, fasteners, gin-config==0.4.0, matplotlib,
optree, pillow, psutil and scipy. Empty modules take the place of what else ALF imports.
"""

import argparse
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import sys
import types
import unittest
from pathlib import Path

import numpy as np
import torch

EMPTY = {"alf.environments._penv", "cv2", "gym", "pandas", "sklearn", "tensorboard", "torchvision", "tqdm"}
CLASSES = {
    "alf.experience_replayers.replay_buffer": ["ReplayBuffer"],
    "alf.experience_replayers.segment_tree": ["SumSegmentTree", "MaxSegmentTree", "MinSegmentTree"],
    "alf.utils.data_buffer": ["RingBuffer", "DataBuffer"],
}
TOLERANCE = 1e-5


# --- imports --------------------------------------------------------------------------------------


class EmptyClass(type):
    """The type of classes whose attributes are such classes, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def init(*args, **kwargs):  # gin rejects classes without an `__init__` of their own
            del args, kwargs

        return EmptyClass(name, (), {"__init__": init})


class EmptyModule(types.ModuleType):
    """A module that has a class of every name."""

    __path__ = ()

    def __getattr__(self, name):
        made = EmptyClass.__getattr__(EmptyClass, name)
        setattr(self, name, made)
        return made


class EmptyModules:
    """Finds the modules that are missing and that ALF imports, but does not need here."""

    def find_spec(self, name, path=None, target=None):
        del path, target
        is_missing = name in EMPTY or name.split(".")[0] in EMPTY
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_missing else None

    def create_module(self, spec):
        return EmptyModule(spec.name)

    def exec_module(self, module):
        pass


def import_alf(root):
    """Imports ALF from its checkout, on the CPU."""
    sys.path.insert(0, str(root))
    sys.meta_path.append(EmptyModules())
    arguments, sys.argv = sys.argv, sys.argv[:1]
    alf = importlib.import_module("alf")
    importlib.import_module("absl.flags").FLAGS(sys.argv)
    sys.argv = arguments
    alf.set_default_device("cpu")
    torch.set_num_threads(1)
    return alf


def replace(cls, new):
    """Makes ALF's modules use another class instead of `cls`."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("alf.") and vars(module).get(cls.__name__) is cls:
            setattr(module, cls.__name__, new)


# --- ALF's tests ----------------------------------------------------------------------------------


def run_tests(root):
    """Runs ALF's tests with Engram's classes; returns whether they passed."""
    engram = importlib.import_module("engram.compat.alf")
    for module, names in CLASSES.items():
        for name in names:
            replace(getattr(importlib.import_module(module), name), getattr(engram, name))
    suite = unittest.TestSuite()
    for module in CLASSES:
        name = f"{module}_test"
        spec = importlib.util.spec_from_file_location(name, root / (name.replace(".", "/") + ".py"))
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[name] = loaded
        spec.loader.exec_module(loaded)
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(loaded))
    return unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()


# --- ALF's algorithms -----------------------------------------------------------------------------


class Goals:
    """Points on a plane that move by their actions; they get 0 instead of -1 near their goals. In NumPy."""

    STEPS, SPEED, RADIUS = 16, 0.25, 0.15

    is_tensor_based = batched = True
    num_tasks = 1

    def __init__(self, alf, batch_size, seed):
        self._alf, self.batch_size = alf, batch_size
        self._random = np.random.default_rng(seed)
        self.reset()

    def observation_spec(self):
        return {name: self._alf.TensorSpec((2,)) for name in ("observation", "achieved_goal", "desired_goal")}

    def action_spec(self):
        return self._alf.BoundedTensorSpec((2,), minimum=-1.0, maximum=1.0)

    def reward_spec(self):
        return self._alf.TensorSpec(())

    def env_info_spec(self):
        return {}

    def time_step_spec(self):
        specs = self.observation_spec(), self.action_spec(), self.reward_spec()
        return self._alf.data_structures.time_step_spec(*specs)

    def current_time_step(self):
        return self._time_step

    def reset(self):
        self._steps = 0
        self._position, self._goal = self._random.uniform(-1, 1, (2, self.batch_size, 2)).astype(np.float32)
        return self._emit(np.zeros((self.batch_size, 2), np.float32))

    def step(self, action):
        if self._steps == self.STEPS:
            return self.reset()
        self._steps += 1
        action = action.detach().numpy()
        self._position = np.clip(self._position + self.SPEED * action.clip(-1, 1), -1, 1).astype(np.float32)
        return self._emit(action)

    def _emit(self, action):
        kind = 0 if self._steps == 0 else 2 if self._steps == self.STEPS else 1
        is_far = np.linalg.norm(self._position - self._goal, axis=1) >= self.RADIUS
        position, goal = torch.tensor(self._position), torch.tensor(self._goal)
        self._time_step = self._alf.data_structures.TimeStep(
            step_type=torch.full((self.batch_size,), kind, dtype=torch.int32),
            reward=torch.tensor(-is_far.astype(np.float32) * (kind > 0)),
            discount=torch.ones(self.batch_size),  # the end is a time limit
            observation={"observation": position, "achieved_goal": position, "desired_goal": goal},
            prev_action=torch.tensor(action),
            env_id=torch.arange(self.batch_size, dtype=torch.int32),
        )
        return self._time_step


def ddpg(alf):
    """DDPG with ALF's hindsight transformer."""
    transformers = importlib.import_module("alf.algorithms.data_transformer")
    env, evaluation = Goals(alf, 16, 1), Goals(alf, 100, 2)
    config = alf.algorithms.config.TrainerConfig(
        root_dir="unused",
        unroll_length=4,
        mini_batch_length=2,
        mini_batch_size=128,
        num_updates_per_train_iter=2,
        initial_collect_steps=1000,
        replay_buffer_length=2000,
        whole_replay_buffer_training=False,
        clear_replay_buffer=False,
    )
    reward = functools.partial(transformers.l2_dist_close_reward_fn, threshold=Goals.RADIUS)
    config.data_transformer = transformers.HindsightExperienceTransformer(env.observation_spec(), reward_fn=reward)
    concat, layers = alf.nest.utils.NestConcat, (64, 64)
    actor = functools.partial(alf.networks.ActorNetwork, preprocessing_combiner=concat(), fc_layer_params=layers)
    critic = functools.partial(
        alf.networks.CriticNetwork, observation_preprocessing_combiner=concat(), joint_fc_layer_params=layers
    )
    algorithm = importlib.import_module("alf.algorithms.ddpg_algorithm").DdpgAlgorithm(
        observation_spec=env.observation_spec(),
        action_spec=env.action_spec(),
        actor_network_ctor=actor,
        critic_network_ctor=critic,
        epsilon_greedy=0.1,
        env=env,
        config=config,
        actor_optimizer=alf.optimizers.Adam(lr=1e-3),
        critic_optimizer=alf.optimizers.Adam(lr=1e-3),
    )
    return algorithm, evaluation, Goals.STEPS


def sarsa(alf):
    """ALF's own test of SARSA with priorities."""
    del alf
    test = importlib.import_module("alf.algorithms.sarsa_algorithm_test")
    env, evaluation = (test.PolicyUnittestEnv(n, 12, action_type=test.ActionType.Continuous) for n in (128, 100))
    algorithm = test._create_algorithm(env, on_policy=False, sac=True, use_rnn=False, priority_replay=True)
    env.reset()
    return algorithm, evaluation, 11


PROGRAMS = {"ddpg": (ddpg, {"keep_episodic_info": True}), "sarsa": (sarsa, {})}
"""How to make each algorithm, and options of its replay buffer."""


def mean_return(algorithm, env, steps):
    """The mean return of one episode of each environment."""
    time_step = env.reset()
    state = algorithm.get_initial_predict_state(env.batch_size)
    total = torch.zeros(env.batch_size)
    with torch.no_grad():
        for _ in range(steps):
            step = algorithm.predict_step(algorithm.transform_timestep(time_step, ())[0], state)
            state = step.state
            time_step = env.step(step.output)
            total += time_step.reward
    return float(total.mean())


def train(alf, program, buffer, seed, iterations):
    """Digests of all batches, all losses, and the mean return at the end."""
    make, options = PROGRAMS[program]
    batches, losses = [], []

    class Recording(buffer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **(options | kwargs))

        def get_batch(self, *args, **kwargs):
            batch, info = super().get_batch(*args, **kwargs)
            leaves = alf.nest.flatten((batch, info._replace(replay_buffer=())))
            batches.append(hashlib.sha256(b"".join(leaf.numpy().tobytes() for leaf in leaves)).hexdigest())
            return batch, info

    for name in ("algorithm", "rl_algorithm"):
        importlib.import_module(f"alf.algorithms.{name}").ReplayBuffer = Recording
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002, ALF uses it
    random.seed(seed)
    alf.summary.reset_global_counter()
    algorithm, evaluation, steps = make(alf)
    update = algorithm.update_with_gradient

    def recorded_update(*args, **kwargs):
        result = update(*args, **kwargs)
        losses.append(float(result[0].loss.detach().mean()))
        return result

    algorithm.update_with_gradient = recorded_update
    for _ in range(iterations):
        algorithm.train_iter()
    return batches, losses, mean_return(algorithm, evaluation, steps)


def compare(alf, program, seed, iterations):
    """Trains with both buffers, and prints what is the same; returns whether batches and losses are."""
    modules = [
        importlib.import_module(name) for name in ("alf.experience_replayers.replay_buffer", "engram.compat.alf")
    ]
    results = [train(alf, program, module.ReplayBuffer, seed, iterations) for module in modules]
    batches, losses, returns = zip(*results, strict=True)
    same = [a == b for a, b in zip(*batches, strict=True)]
    difference = max(abs(a - b) for a, b in zip(*losses, strict=True))
    line = {
        "program": program,
        "seed": seed,
        "iterations": iterations,
        "batches": len(same),
        "first_other_batch": None if all(same) else same.index(False),
        "losses": len(losses[0]),
        "largest_difference_of_losses": difference,
        "last_loss_with_alf_and_engram": [each[-1] for each in losses],
        "return_with_alf_and_engram": returns,
    }
    print(json.dumps(line), flush=True)  # noqa: T201, the result
    return all(same) and difference <= TOLERANCE


def main():
    """Runs the chosen programs; exits with 1 if one of them fails or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", choices=["tests", *PROGRAMS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=300)
    options = parser.parse_args()
    if "ALF_ROOT" not in os.environ:
        print("skipped: set ALF_ROOT to a checkout of https://github.com/HorizonRobotics/alf")  # noqa: T201, the result
        return
    root = Path(os.environ["ALF_ROOT"]).expanduser()
    alf = import_alf(root)
    passed = [
        compare(alf, program, seed, options.iterations)
        for program in options.programs
        if program != "tests"
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    if "tests" in options.programs:  # last, because they replace the classes
        passed.append(run_tests(root))
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
