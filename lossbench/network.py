"""Whether the Hugging Face hub can be asked: without a network its clients retry for half a minute and more."""

import os
import socket
from urllib.parse import urlsplit


def no_hub() -> str | None:
    """Reason why nothing can be fetched from the hub, or None."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set, so it is not downloaded"
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return None
    host = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((host.hostname or "", host.port or 443), timeout=5).close()
    except OSError:
        return f"{constants.ENDPOINT} cannot be reached"
    return None
