"""A worker process: stages come in; a running process with ticker, watchdog and metrics comes out.

Read `worker` first. `app` and `transport` are the only modules that know Faust; `ticker` writes time into the log;
`watchdog` ends a process that no longer moves.
"""
