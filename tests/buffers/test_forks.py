"""A replay buffer that was created before a fork is rejected in the child."""

from helpers.forks import PROGRAM, needs_fork
from helpers.support import run_python


@needs_fork
def test_a_child_cannot_use_the_buffer_of_its_parent():
    code = """
from engram.buffers import ReplayBuffer
buffer = ReplayBuffer(10, seed=0)
buffer.add({"x": 1})
epoch = buffer.epoch(1)

def work():
    for call in (
        lambda: buffer.add({"x": 1}),
        lambda: buffer.sample(1),
        lambda: len(buffer),
        lambda: next(epoch),
        lambda: buffer.scan(1),
        buffer.clear,
    ):
        expect_forked_error("replay buffer", call)
    new = ReplayBuffer(10, seed=0)
    new.add({"x": 1})
    assert new.sample(1).data["x"].tolist() == [1]

in_child(work)
assert len(buffer) == 1
print("done")
"""
    assert run_python(PROGRAM + code).endswith("done\n")
