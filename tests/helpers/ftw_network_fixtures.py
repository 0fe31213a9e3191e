"""Fixtures of other sizes than the published ones, with the same file and key names, from the naive reference."""

import json

import numpy as np

from helpers import ftw_network_reference as reference

SEED = 5
ACCESS_SIZES = {
    "write_vectors": "kw",
    "erase_vectors": "kw",
    "free_gate": "r",
    "allocation_gate": "k",
    "write_gate": "k",
    "read_mode": "rm",
    "write_keys": "kw",
    "write_strengths": "k",
    "read_keys": "rw",
    "read_strengths": "r",
}


def write(folder):
    """Writes all files of the networks."""
    rng = np.random.default_rng(SEED)
    rpth_dims = {"hidden": 3, "num_dimensions": 4, "input": 2}
    memory_dims = {"memory_size": 7, "word_size": 2, "num_reads": 3, "num_writes": 2}
    contents = {
        "torso": torso(rng),
        "pixel_control_head": pixel_control_head(rng),
        "dnc_addressing": addressing(rng),
        "dnc_access": access(rng, {**memory_dims, "batch": 3, "input": 5}),
        "rpth_lstm": rpth(rng, rpth_dims, period=2, steps=6, batch=3),
        "rpth_dnc": rpth(rng, {**rpth_dims, **memory_dims}, period=4, steps=9, batch=1),
    }
    for name, content in contents.items():
        (folder / f"ftw_{name}.json").write_text(json.dumps(content, default=np.ndarray.tolist))


def torso(rng):
    conv_filters, residual_filters, hidden = [[3, 5, 3], [5, 2, 1]], [[5, 3, 1], [5, 2, 1], [5, 4, 1]], 7
    params, channels = {}, 2
    for index, (out, kernel, _) in enumerate(conv_filters):
        params[f"conv{index}_w"] = rng.normal(size=(kernel, kernel, channels, out))
        params[f"conv{index}_b"], channels = rng.normal(size=out), out
    for index, (out, kernel, _) in enumerate(residual_filters):
        params[f"res{index}_w"] = rng.normal(size=(kernel, kernel, channels, out))
        params[f"res{index}_b"] = rng.normal(size=out)
    params["linear_w"], params["linear_b"] = rng.normal(size=(5 * 4 * channels, hidden)), rng.normal(size=hidden)
    inputs, strides = rng.normal(size=(3, 13, 10, 2)), [stride for _, _, stride in conv_filters]
    return {
        "conv_filters": conv_filters,
        "residual_filters": residual_filters,
        "params": params,
        "inputs": inputs,
        "expected": reference.torso(params, inputs, strides, activate_last=False),
        "expected_activate_last": reference.torso(params, inputs, strides, activate_last=True),
    }


def pixel_control_head(rng):
    channels, cells, actions, in_size = 4, 11, 2, 5
    small = -(-cells // 3)
    shapes = {
        "linear_w": [in_size, channels * small**2],
        "linear_b": [channels * small**2],
        "deconv_w": [9, 9, channels, channels],
        "deconv_b": [channels],
        "value_w": [4, 4, 1, channels],
        "value_b": [1],
        "advantage_w": [4, 4, actions, channels],
        "advantage_b": [actions],
    }
    seeds = {name: 0.3 + index for index, name in enumerate(shapes)}
    inputs = rng.normal(size=(3, in_size))
    expected = reference.pixel_control_head(sine_params(shapes, seeds), inputs, cells)
    mean = expected.mean(-1)[:, :2, :2]
    return {"shapes": shapes, "seeds": seeds, "inputs": inputs, "expected": expected, "mean_over_actions": mean}


def sine_params(shapes, seeds):
    """The parameters of the pixel-control head, by the formula of its fixture."""
    return {
        name: 0.1 * np.sin(0.7 * np.arange(np.prod(shape)) + seeds[name]).reshape(shape)
        for name, shape in shapes.items()
    }


def addressing(rng):
    batch, n, w, r, k = 3, 6, 4, 3, 2
    memory, keys, strengths = (
        rng.normal(size=(batch, n, w)),
        rng.normal(size=(batch, r, w)),
        rng.normal(size=(batch, r)),
    )
    usage, gates, free = rng.uniform(size=(batch, n)), rng.uniform(size=(batch, k)), rng.uniform(size=(batch, r))
    write_weights, read_weights = simplex(rng, batch, k, n), simplex(rng, batch, r, n)
    link, precedence = rng.uniform(0, 1 / n, size=(batch, k, n, n)), simplex(rng, batch, k, n)
    forward, backward = per_element(reference.directional_weights, link, read_weights)
    new_link, new_precedence = per_element(reference.linkage_after, link, precedence, write_weights)
    return {
        "content": {
            "memory": memory,
            "keys": keys,
            "strengths": strengths,
            "expected": per_element(reference.content_weights, memory, keys, reference.softplus(strengths)),
        },
        "allocation": {"usage": usage, "expected": per_element(reference.allocation_weights, usage)},
        "write_allocation": {
            "usage": usage,
            "gates": gates,
            "expected": per_element(reference.write_allocation_weights, usage, gates),
        },
        "usage": {
            "prev_usage": usage,
            "write_weights": write_weights,
            "free_gate": free,
            "read_weights": read_weights,
            "expected": per_element(reference.usage_after, usage, write_weights, free, read_weights),
        },
        "linkage": {
            "link": link,
            "precedence": precedence,
            "write_weights": write_weights,
            "expected_link": new_link,
            "expected_precedence": new_precedence,
        },
        "directional": {"link": link, "read_weights": read_weights, "forward": forward, "backward": backward},
    }


def access(rng, dims):
    params, batch = access_params(rng, dims, dims["input"]), dims["batch"]
    usage = rng.uniform(size=(batch, dims["memory_size"]))
    memory = rng.normal(size=(batch, dims["memory_size"], dims["word_size"]))
    inputs = rng.normal(size=(4, batch, dims["input"]))
    states = [{**reference.initial_access(dims, u), "memory": m} for u, m in zip(usage, memory, strict=True)]
    steps = []
    for x in inputs:
        results = [reference.access(params, *each) for each in zip(x, states, strict=True)]
        states = [state for _, state in results]
        stacked = {key: np.stack([state[key] for state in states]) for key in states[0]}
        steps.append({"reads": np.stack([reads for reads, _ in results]), **stacked})
    return {
        "dims": dims,
        "params": params,
        "initial_usage": usage,
        "initial_memory": memory,
        "inputs": inputs,
        "steps": steps,
    }


def rpth(rng, dims, period, steps, batch):
    with_memory = "memory_size" in dims
    params, inputs, eps = rpth_params(rng, dims, ("slow",)), *rpth_inputs(rng, dims, steps, batch)
    usage = rng.uniform(size=(batch, dims["memory_size"])) if with_memory else [None] * batch
    elements = zip(inputs.swapaxes(0, 1), eps.swapaxes(0, 1), usage, strict=True)
    histories = [reference.rpth(params, dims, x, noise, periods={"slow": period}, usage=u) for x, noise, u in elements]

    def over_time(read):
        return np.array([[read(step) for step in history] for history in histories]).swapaxes(0, 1)

    outputs = {
        "z": over_time(lambda step: step["z"]),
        "prior_loc": over_time(lambda step: step["slow"]["loc"]),
        "prior_scale": over_time(lambda step: step["slow"]["scale"]),
        "post_loc": over_time(lambda step: step["fast"]["loc"]),
        "post_scale": over_time(lambda step: step["fast"]["scale"]),
    }
    content = {"dims": dims, "period": period, "params": params, "inputs": inputs, "eps": eps, "outputs": outputs}
    if with_memory:
        outputs["r_s"] = over_time(lambda step: step["slow"]["reads"])
        outputs["r_f"] = over_time(lambda step: step["fast"]["reads"])
        outputs["usage"] = over_time(lambda step: step["memory"]["usage"])
        return {**content, "initial_usage": usage}
    outputs["h_s"] = over_time(lambda step: step["slow"]["h"])
    outputs["h_f"] = over_time(lambda step: step["fast"]["h"])
    last = {
        "h_s": outputs["h_s"][-1],
        "c_s": over_time(lambda step: step["slow"]["c"])[-1],
        "h_f": outputs["h_f"][-1],
        "c_f": over_time(lambda step: step["fast"]["c"])[-1],
        "loc_s": outputs["prior_loc"][-1],
        "scale_s": outputs["prior_scale"][-1],
        "z": outputs["z"][-1],
        "step": np.full(batch, float(steps)),
    }
    return {**content, "final_state": last}


def rpth_params(rng, dims, slow):
    """Parameters of RPTH with slow cores of these names, and a memory if `dims` has its sizes."""
    h, z, x, with_memory = dims["hidden"], dims["num_dimensions"], dims["input"], "memory_size" in dims
    reads = dims["num_reads"] * dims["word_size"] if with_memory else 0
    params = {"access": access_params(rng, dims, h)} if with_memory else {}
    in_sizes = {name: len(slow) * (h + reads) + index * 2 * z for index, name in enumerate(slow)}
    in_sizes["fast"] = x + len(slow) * (h + reads + 2 * z) + z
    for name, in_size in in_sizes.items():
        params[f"{name}_lstm"] = [normal(rng, in_size + reads, 4 * h), normal(rng, h, 4 * h), rng.normal(size=4 * h)]
        if with_memory:
            params[f"{name}_proj"] = [normal(rng, h + reads, h), rng.normal(size=h)]
        params[f"{name}_head"] = [normal(rng, h, z), rng.normal(size=z), normal(rng, h, z), rng.normal(size=z)]
    return params


def rpth_inputs(rng, dims, steps, batch):
    """Inputs [T, B, I] and noise [T, B, Z]."""
    return rng.normal(size=(steps, batch, dims["input"])), rng.normal(size=(steps, batch, dims["num_dimensions"]))


def access_params(rng, dims, in_size):
    k, r = dims["num_writes"], dims["num_reads"]
    sizes = {"k": k, "r": r, "w": dims["word_size"], "m": 2 * k + 1}
    outs = {name: int(np.prod([sizes[axis] for axis in axes])) for name, axes in ACCESS_SIZES.items()}
    return {name: [normal(rng, in_size, out), rng.normal(size=out)] for name, out in outs.items()}


def normal(rng, in_size, out_size):
    return rng.normal(size=(in_size, out_size)) / np.sqrt(in_size)


def simplex(rng, *shape):
    """Weights whose sum over the last axis is below 1."""
    return 0.9 * rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])


def per_element(function, *arguments):
    """Applies a function to each element of the batch and stacks its results."""
    results = [function(*each) for each in zip(*arguments, strict=True)]
    return tuple(map(np.stack, zip(*results, strict=True))) if isinstance(results[0], tuple) else np.stack(results)
