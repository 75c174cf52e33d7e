#!/usr/bin/env bash
# jax 0.12.0.1 on a CPU: sums of bfloat16 by segment stop at 256, where plain sums go on.
#
# Expected: the sum of a segment is what `jnp.sum` gives of the same numbers. `sum`, `cumsum`, `dot` and `einsum` of a thousand ones in bfloat16 are 1000,
# for they add in float32 and round once.
# What happens: `jax.ops.segment_sum`, `.at[…].add` and `jnp.bincount` with weights add one after the other in bfloat16 and give 256: from there on one more
# changes nothing. In NumPy with ml_dtypes 0.6.0 the same array has the sum 256 and the mean 0.256. In float32 all are right.
# Whom it matters to: whoever packs sequences into rows and adds losses, masks or token counts by sequence: a sequence of 1,000 tokens counts as one of 256.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip --python "$folder/venv/bin/python" install -q --no-compile --disable-pip-version-check jax==0.12.0.1 jaxlib==0.12.0.1 ml_dtypes==0.6.0
cat >"$folder/try.py" <<'PY'
import sys
from importlib.metadata import version

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

print("jax", version("jax"), "ml_dtypes", version("ml_dtypes"))


def by_segment(dtype):
    ones, rows = jnp.ones(1000, dtype), jnp.zeros(1000, jnp.int32)
    sums = {
        "segment_sum": jax.ops.segment_sum(ones, rows, 1)[0],
        "at.add": jnp.zeros(1, dtype).at[rows].add(ones)[0],
        "bincount": jnp.bincount(rows, weights=ones, length=1)[0],
    }
    return {name: float(value) for name, value in sums.items()}


ones = jnp.ones(1000, jnp.bfloat16)
plain = {name: float(value) for name, value in {"sum": ones.sum(), "cumsum": ones.cumsum()[-1], "dot": ones @ ones}.items()}
numpy = np.ones(1000, ml_dtypes.bfloat16)
print("plain, bfloat16:", plain)
print("by segment, bfloat16:", by_segment(jnp.bfloat16))
print("by segment, float32:", by_segment(jnp.float32))
print("NumPy, bfloat16: sum", float(numpy.sum()), "mean", float(numpy.mean()))
sys.exit(
    set(plain.values()) != {1000.0}
    or set(by_segment(jnp.bfloat16).values()) != {256.0}
    or set(by_segment(jnp.float32).values()) != {1000.0}
    or (float(numpy.sum()), round(float(numpy.mean()), 3)) != (256.0, 0.256)
)
PY
JAX_PLATFORMS=cpu "$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
