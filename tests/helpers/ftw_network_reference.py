"""The networks of FTW as naive NumPy: loops over elements and slots, written from the equations; float64.

`p` maps names to parameters as the fixtures do.
"""

import numpy as np

EPSILON = 1e-6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def relu(x):
    return np.maximum(x, 0)


def padding_before(size, kernel, stride):
    """TensorFlow's rule for SAME."""
    return max((-(-size // stride) - 1) * stride + kernel - size, 0) // 2


def convolution(x, w, b, stride):
    """[N, H, W, C] with a kernel [k, k, C, O]."""
    n, height, width, _ = x.shape
    k = w.shape[0]
    top, left = padding_before(height, k, stride), padding_before(width, k, stride)
    out = np.zeros((n, -(-height // stride), -(-width // stride), w.shape[-1])) + b
    for i, j, di, dj in np.ndindex(*out.shape[1:3], k, k):
        row, column = i * stride + di - top, j * stride + dj - left
        if 0 <= row < height and 0 <= column < width:
            out[:, i, j] += x[:, row, column] @ w[di, dj]
    return out


def transposed_convolution(x, w, b, stride, size):
    """[N, h, w, C] with a kernel [k, k, O, C]: each input pixel adds its kernel to the output."""
    n, height, width, _ = x.shape
    k = w.shape[0]
    before = padding_before(size, k, stride)
    out = np.zeros((n, size, size, w.shape[2])) + b
    for i, j, di, dj in np.ndindex(height, width, k, k):
        row, column = i * stride + di - before, j * stride + dj - before
        if 0 <= row < size and 0 <= column < size:
            out[:, row, column] += x[:, i, j] @ w[di, dj].T
    return out


def torso(p, x, strides, activate_last):
    for index, stride in enumerate(strides):
        x = relu(convolution(x, p[f"conv{index}_w"], p[f"conv{index}_b"], stride))
    index = 0
    while f"res{index}_w" in p:
        x = x + convolution(relu(x) if index else x, p[f"res{index}_w"], p[f"res{index}_b"], 1)
        index += 1
    x = relu(x).reshape(len(x), -1) @ p["linear_w"] + p["linear_b"]
    return relu(x) if activate_last else x


def pixel_control_head(p, x, size):
    small = -(-size // 3)
    x = relu(x @ p["linear_w"] + p["linear_b"]).reshape(len(x), small, small, -1)
    x = relu(transposed_convolution(x, p["deconv_w"], p["deconv_b"], 3, size))
    value = transposed_convolution(x, p["value_w"], p["value_b"], 1, size)
    advantage = transposed_convolution(x, p["advantage_w"], p["advantage_b"], 1, size)
    return value + advantage - advantage.mean(-1, keepdims=True)


def lstm(p, x, h, c):
    w_i, w_h, b = p
    i, f, g, o = np.split(x @ w_i + h @ w_h + b, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gaussian_head(p, x):
    w_mean, b_mean, w_scale, b_scale = p
    return x @ w_mean + b_mean, 0.1 * softplus(x @ w_scale + b_scale) / softplus(0) + 1e-6


# Of one element of a batch: memory [N, W], usage [N], weights [heads, N], link [K, N, N].


def content_weights(memory, keys, strengths):
    norms = np.sqrt((memory**2).sum(-1) + EPSILON)
    rows = []
    for key, strength in zip(keys, strengths, strict=True):
        norm = np.sqrt(key @ key + EPSILON)
        cosines = [key @ m / (norm * n + EPSILON) for m, n in zip(memory, norms, strict=True)]
        rows.append(softmax(strength * np.array(cosines)))
    return np.stack(rows)


def allocation_weights(usage):
    u = EPSILON + (1 - EPSILON) * usage
    a, product = np.zeros_like(u), 1.0
    for slot in sorted(range(len(u)), key=lambda i: (u[i], i)):
        a[slot] = (1 - u[slot]) * product
        product *= u[slot]
    return a


def write_allocation_weights(usage, gates):
    rows = []
    for gate in gates:
        rows.append(allocation_weights(usage))
        usage = usage + (1 - usage) * gate * rows[-1]
    return np.stack(rows)


def usage_after(usage, write_weights, free_gates, read_weights):
    for slot in range(len(usage)):
        written, retained = 1.0, 1.0
        for w in write_weights:
            written *= 1 - w[slot]
        for f, w in zip(free_gates, read_weights, strict=True):
            retained *= 1 - f * w[slot]
        value = (usage[slot] + (1 - usage[slot]) * (1 - written)) * retained
        usage = np.where(np.arange(len(usage)) == slot, value, usage)
    return usage


def linkage_after(link, precedence, write_weights):
    new = np.zeros_like(link)
    for k, i, j in np.ndindex(*link.shape):
        w = write_weights[k]
        if i != j:
            new[k, i, j] = (1 - w[i] - w[j]) * link[k, i, j] + w[i] * precedence[k, j]
    return new, (1 - write_weights.sum(-1, keepdims=True)) * precedence + write_weights


def directional_weights(link, read_weights):
    """[R, K, N] each."""
    forward = np.stack([np.stack([each @ w for each in link]) for w in read_weights])
    backward = np.stack([np.stack([each.T @ w for each in link]) for w in read_weights])
    return forward, backward


def initial_access(dims, usage=None):
    n, w, r, k = dims["memory_size"], dims["word_size"], dims["num_reads"], dims["num_writes"]
    return {
        "memory": np.zeros((n, w)),
        "read_weights": np.zeros((r, n)),
        "write_weights": np.zeros((k, n)),
        "link": np.zeros((k, n, n)),
        "precedence": np.zeros((k, n)),
        "usage": np.zeros(n) if usage is None else usage,
    }


def access(p, x, state):
    """One step of one element: the words read [R, W], and the next state."""

    def linear(name, *shape):
        w, b = p[name]
        return (x @ w + b).reshape(shape)

    (k, _), (r, _) = state["write_weights"].shape, state["read_weights"].shape
    free, allocate = sigmoid(linear("free_gate", r)), sigmoid(linear("allocation_gate", k))
    gate = sigmoid(linear("write_gate", k))
    usage = usage_after(state["usage"], state["write_weights"], free, state["read_weights"])
    content = content_weights(state["memory"], linear("write_keys", k, -1), softplus(linear("write_strengths", k)))
    allocation = write_allocation_weights(usage, allocate * gate)
    w_w = gate[:, None] * (allocate[:, None] * allocation + (1 - allocate[:, None]) * content)
    memory = state["memory"]
    for w, e in zip(w_w, sigmoid(linear("erase_vectors", k, -1)), strict=True):
        memory = memory * (1 - np.outer(w, e))
    for w, v in zip(w_w, linear("write_vectors", k, -1), strict=True):
        memory = memory + np.outer(w, v)
    link, precedence = linkage_after(state["link"], state["precedence"], w_w)
    forward, backward = directional_weights(link, state["read_weights"])
    content = content_weights(memory, linear("read_keys", r, -1), softplus(linear("read_strengths", r)))
    modes = softmax(linear("read_mode", r, -1))
    heads = zip(modes, backward, forward, content, strict=True)
    w_r = np.stack([m[:k] @ b + m[k : 2 * k] @ f + m[-1] * c for m, b, f, c in heads])
    state = {
        "memory": memory,
        "read_weights": w_r,
        "write_weights": w_w,
        "link": link,
        "precedence": precedence,
        "usage": usage,
    }
    return w_r @ memory, state


def rpth(p, dims, inputs, noise, *, periods, usage=None):
    """Unrolls RPTH for one element, inputs [T, I] and noise [T, Z]; `periods` maps names of slow cores to periods.

    There is a memory if `p` has `access`. Returns a dict of values after each step: of each core by name, of memory
    and z.
    """
    with_memory = "access" in p
    reads = np.zeros((dims["num_reads"], dims["word_size"])) if with_memory else np.zeros(0)
    h, z = np.zeros(dims["hidden"]), np.zeros(dims["num_dimensions"])
    cores = {name: {"h": h, "c": h, "reads": reads, "loc": z, "scale": z} for name in (*periods, "fast")}
    memory = initial_access(dims, usage) if with_memory else None
    history = []

    def visible(names):
        return [values for name in names for values in (cores[name]["h"], cores[name]["reads"].ravel())]

    def priors(names):
        return [cores[name][part] for name in names for part in ("loc", "scale")]

    def step(name, x):
        """The next state of a core, and of the memory."""
        core = cores[name]
        h, c = lstm(p[f"{name}_lstm"], np.concatenate([*x, core["reads"].ravel()]), core["h"], core["c"])
        features, reads, new_memory = h, core["reads"], memory
        if with_memory:
            reads, new_memory = access(p["access"], h, memory)
            w, b = p[f"{name}_proj"]
            features = np.concatenate([h, reads.ravel()]) @ w + b
        loc, scale = gaussian_head(p[f"{name}_head"], features)
        return {"h": h, "c": c, "reads": reads, "loc": loc, "scale": scale}, new_memory

    for n, (x, eps) in enumerate(zip(inputs, noise, strict=True)):
        stepped = []
        for name, period in periods.items():
            if n % period == 0:
                others = [other for other in cores if other != name]
                cores[name], memory = step(name, [*visible(others), *priors(stepped)])
            stepped.append(name)
        cores["fast"], memory = step("fast", [x, *visible(periods), *priors(periods), z])
        z = cores["fast"]["loc"] + cores["fast"]["scale"] * eps
        history.append({**cores, "memory": memory, "z": z})
    return history
