"""Tables from a file in the text format of Reverb's server configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engram.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pathlib import Path

    import engram

__all__ = ["read_reverb_config"]


def read_reverb_config(path: Path) -> tuple[list[engram.Table], int]:
    """Returns the tables of a file, and its port; 0 if it has none.

    Raises:
        InvalidArgumentError: The file cannot be read, is not valid, or has no tables, or protobuf is not installed. The
            text names the file.
    """
    from engram.compat.reverb.server_executable import server_from_proto  # noqa: PLC0415, needed by few servers

    try:
        config = server_from_proto.parse_config(path.read_text(encoding="utf-8"))
        tables = server_from_proto.tables_from_proto(config.tables)
    except OSError as error:
        raise InvalidArgumentError(f"cannot read tables from `{path}`: {error.strerror or error}") from error
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InvalidArgumentError(f"cannot read tables from `{path}`: {error}") from error
    except ImportError as error:
        raise InvalidArgumentError(str(error)) from error
    if not tables:
        raise InvalidArgumentError(f"`{path}` has no tables; each table is a field `tables {{ ... }}`")
    return [table._native for table in tables], config.port  # noqa: SLF001, the same project
