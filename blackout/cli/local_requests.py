"""Which requests the web servers of this package answer: those of a browser for their own pages."""

from __future__ import annotations

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")


def is_local_request(host: str, origin: str | None, port: int) -> bool:
    """Return whether a request is for this machine's own name, and not sent by another site's page.

    Another site's name can point to this machine: then the host is that name. Another site's page
    can send a request here: then the origin is that site.

    Args:
        host: the header `Host`, perhaps with a port; empty without one.
        origin: the header `Origin`; None without one.
        port: of the server, which is part of its origin.
    """
    origins = [f"http://{name}:{port}" for name in HOST_NAMES]
    return host.partition(":")[0] in HOST_NAMES and (origin is None or origin in origins)
