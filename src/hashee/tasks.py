"""Tasks under the name that they had before `hashee.data`: the same objects."""

from hashee.data import *  # noqa: F403
from hashee.data import __all__  # noqa: F401
