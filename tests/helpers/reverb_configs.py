"""Table descriptions in the text format of Reverb's server configurations."""

import base64

from engram.compat import reverb
from helpers.reverb_tables import create_table

_DTYPES = {
    "bool": "DT_BOOL",
    "float32": "DT_FLOAT",
    "float64": "DT_DOUBLE",
    "int16": "DT_INT16",
    "int32": "DT_INT32",
    "string": "DT_STRING",
}


def config_text(description):
    """Returns one field `tables` of a configuration, for a table description as in `reverb_tables.TABLES`."""
    info = create_table(reverb, description, None).info
    limiter = info.rate_limiter_info
    signature = description["signature"]
    return f"""
        tables {{
          table_name: "{info.name}"
          max_size: {info.max_size}
          max_times_sampled: {info.max_times_sampled}
          sampler {{ {info.sampler_options} }}
          remover {{ {info.remover_options} }}
          rate_limiter {{
            samples_per_insert: {limiter.samples_per_insert}
            min_size_to_sample: {limiter.min_size_to_sample}
            min_diff: {limiter.min_diff}
            max_diff: {limiter.max_diff}
          }}
          {"" if signature is None else f"signature {{ {_signature_text(signature)} }}"}
        }}
    """


def _signature_text(nest):
    """Returns the fields of a `StructuredValue`."""
    ((kind, content),) = nest.items()
    if kind in {"list", "tuple"}:
        values = " ".join(f"values {{ {_signature_text(each)} }}" for each in content)
        return f"{kind}_value {{ {values} }}"
    if kind in {"dict", "namedtuple"}:
        pairs = content.items() if kind == "dict" else content["fields"]
        field = "fields" if kind == "dict" else "values"
        values = " ".join(f"{field} {{ key: '{key}' value {{ {_signature_text(each)} }} }}" for key, each in pairs)
        name = "" if kind == "dict" else f"name: '{content['name']}'"
        return f"{'dict' if kind == 'dict' else 'named_tuple'}_value {{ {name} {values} }}"
    dtype = _DTYPES[content["dtype"]]
    text = f"name: '{content['name'] or ''}' dtype: {dtype} shape {{ {_shape_text(content['shape'])} }}"
    if "minimum" not in content:
        return f"tensor_spec_value {{ {text} }}"
    for side in ("minimum", "maximum"):
        data = "".join(f"\\{byte:03o}" for byte in base64.b64decode(content[side]["data"]))
        shape = _shape_text(content[side]["shape"])
        text += f" {side} {{ dtype: {dtype} tensor_shape {{ {shape} }} tensor_content: '{data}' }}"
    return f"bounded_tensor_spec_value {{ {text} }}"


def _shape_text(shape):
    if shape is None:
        return "unknown_rank: true"
    return " ".join(f"dim {{ size: {-1 if size is None else size} }}" for size in shape)
