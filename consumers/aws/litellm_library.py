"""litellm, loaded so that it keeps to itself: no price map from the network, no `.env` of the folder, no noise.

It takes seconds and 200 MB; only the worker that needs it imports this.
"""

import logging
import os

# Before the import, which is when litellm looks at them.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("LITELLM_MODE", "PRODUCTION")

import litellm
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

__all__ = ["AsyncHTTPHandler", "litellm", "quiet"]


def quiet() -> None:
    """Say nothing on the terminal, and report to nobody. Once, at the start of a process."""
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.turn_off_message_logging = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
