"""The front door of every HTTP server of rollbus.

A request comes in; it reaches the application only if `guard` lets it pass, with its whole body. Read `guard` first
(what is checked), then `server` (uvicorn, and how long a connection may be silent). `listener` opens the port;
`loopback` is about our clients.
"""

PRIORITY_HEADER = "rollbus-priority"
"""Of a request to a model: a whole number, 0 without it. Of requests that wait, those with the lowest begin first."""
