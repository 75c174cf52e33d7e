"""The front door of every HTTP server of rollbus.

A request comes in; it reaches the application only if `guard` lets it pass, with its whole body. Read `guard` first
(what is checked), then `server` (uvicorn, and how long a connection may be silent).
"""
