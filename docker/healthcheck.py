"""Asks the service in this container whether it is ready; exit code 0 if it is, 1 with the reason if not.

For HEALTHCHECK and for people: `python healthcheck.py [PATH]`. Only Python's own library: the image has no curl.
"""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 5


def main(path: str = "/readyz") -> int:
    """Ask once.

    Args:
        path: `/readyz` (the database can be read and is followed) or `/healthz` (the process answers).
    """
    host = os.environ.get("FP4TUNE_HOST", "127.0.0.1")
    # An address that stands for all of them is asked on loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{host}:{os.environ.get('FP4TUNE_PORT', '8040')}{path}"
    # No proxy: whatever http_proxy says, this stays in the container.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            print(answer.read(2000).decode("utf-8", "replace"))
            return 0
    except urllib.error.HTTPError as error:
        print(f"{url} answers {error.code}: {_detail(error.read(20_000))}")
    except (OSError, http.client.HTTPException) as error:
        print(f"{url} does not answer: {getattr(error, 'reason', error)!s:.300}")
    return 1


def _detail(body: bytes) -> str:
    """What a problem document says, or the beginning of anything else."""
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:300].decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
