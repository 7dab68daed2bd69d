"""Files of YAML that users write: what they say, or one line that says what is wrong."""

from typing import Any

import yaml

from kvbench.support.errors import UserError

_LONGEST = 200
"""Characters of what the parser says."""


def yaml_of(content: bytes, name: object) -> Any:
    """Parse the text of the file `name`. Raises UserError, in one line, for what is no YAML or nested too deeply."""
    try:
        return yaml.safe_load(content.decode())
    except RecursionError:
        raise UserError(f"{name}: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a date that there is not
        raise UserError(f"{name} is no YAML: {' '.join(str(error).split())[:_LONGEST]}") from None
