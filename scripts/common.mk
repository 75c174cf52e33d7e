# What the Makefiles share.

SHELL := /bin/bash
PYTHON_BIN := .venv/bin
export PYTHONUNBUFFERED := 1
# Compiled modules are kept: the tests start hundreds of Python processes, and one without them takes three times as long.
export PYTHONDONTWRITEBYTECODE :=
# One thread per process: the tests and the demo run several processes side by side.
export OMP_NUM_THREADS ?= 1
