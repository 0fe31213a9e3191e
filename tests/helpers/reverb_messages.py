"""The fields of protobuf messages."""


def message_fields(descriptor):
    """Returns the fields of a message and of all messages in it, by full name: name, number, type, repeated, oneof."""
    fields, waiting = {}, [descriptor]
    while waiting:
        message = waiting.pop()
        if message.full_name in fields:
            continue
        fields[message.full_name] = [_described(field) for field in message.fields]
        waiting += [field.message_type for field in message.fields if field.message_type is not None]
    return fields


def _described(field):
    # Messages and enums, 11 and 14, are described by their name.
    kind = (field.message_type or field.enum_type or field).full_name if field.type in {11, 14} else field.type
    repeated = getattr(field, "is_repeated", None)
    if repeated is None:  # before protobuf 6
        repeated = field.label == field.LABEL_REPEATED
    oneof = field.containing_oneof and field.containing_oneof.name
    return (field.name, field.number, kind, repeated, oneof)
