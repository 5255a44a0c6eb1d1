"""Ask a daemon in the same container whether it lives. Exit 0 when it answers 200, else 1.

    python healthcheck.py URL

CONTINUUM_HEALTH_URL wins over the argument, for a daemon that listens elsewhere or over https. The
certificate is not looked at: it is made for other names than 127.0.0.1, and nothing is told.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request


def main(url: str) -> int:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=3) as answer:
            return 0 if answer.status == 200 else 1
    except (OSError, urllib.error.URLError, ValueError):
        return 1


if __name__ == "__main__":
    sys.exit(main(os.environ.get("CONTINUUM_HEALTH_URL") or sys.argv[1]))
