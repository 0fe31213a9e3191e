"""Makes `import reverb` return `engram.compat.reverb` in every process of `make test-outside`.

Acme also imports Launchpad, for handlers that run when a program is stopped. Launchpad has no wheels for this Python;
a module with empty functions takes its place.
"""

import sys
from types import ModuleType

from engram.compat import reverb

reverb.install_as_reverb()

launchpad = ModuleType("launchpad")
launchpad.register_stop_handler = launchpad.unregister_stop_handler = lambda _: None
sys.modules["launchpad"] = launchpad
