"""``python -m tests.goldens``: draw the golden pictures again."""

from tests import goldens

goldens.renew()
